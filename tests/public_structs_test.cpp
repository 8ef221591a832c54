// What a user's program names of the library's structs, the rest it leaves: compilers that warn of
// members without a value of their own would stop programs that take warnings as errors, as this
// one is compiled.
#include <gtest/gtest.h>

#include "polyhead/attention.h"
#include "polyhead/cache_file.h"
#include "polyhead/code_frame.h"
#include "polyhead/cost.h"
#include "polyhead/explain.h"
#include "polyhead/heads.h"
#include "polyhead/inspect.h"
#include "polyhead/latent.h"
#include "polyhead/layer.h"
#include "polyhead/tree_mask.h"

namespace polyhead {
namespace {

TEST(PublicStructs, EveryMemberHasAValueOfItsOwn) {
  EXPECT_FALSE(RopeConfig{.base = 1e4}.attention_factor.has_value());
  EXPECT_TRUE((HeadStudy{.q_heads = 1}.tokens.empty()));
  EXPECT_TRUE((HeadStudy{.q_heads = 1}.maps.empty()));
  EXPECT_TRUE(DraftTree{.held = 1}.parents.empty());
  EXPECT_TRUE(KeyScales{.by_channel = true}.values.empty());
  EXPECT_FALSE(AttentionArguments{.q = {}}.out.given());
  EXPECT_FALSE(InspectArguments{.heads = {}}.weights.given());
  EXPECT_EQ(Limits{.batch = 2}.batch, 2);
  EXPECT_FALSE(Modifiers{.scale = 1.0f}.bias.given());
  EXPECT_FALSE(Mask{.causal = true}.windowed);
  EXPECT_FALSE(LayerConfig{.model_dim = 1}.rope.has_value());
  EXPECT_FALSE(LayerWeights{.w_q = {}}.w_o.given());
  EXPECT_FALSE(LayerCall{.positions = {}}.lse.given());
  EXPECT_FALSE(LatentConfig{.model_dim = 1}.rope.has_value());
  EXPECT_FALSE(LatentWeights{.w_q = {}}.w_o.given());
  EXPECT_FALSE(KvView{.k = {}}.v.given());
  EXPECT_FALSE(KvCacheConfig{.batch = 1}.key_scales.given());
  EXPECT_FALSE(SlidingCacheConfig{.batch = 1}.values_in_keys);
  EXPECT_FALSE(PagedCacheConfig{.pages = 1}.key_scales.given());
  EXPECT_FALSE(CodeFrame{.centre = {}}.given());
  EXPECT_FALSE(LayerFrames{.keys = {}}.values.given());
  EXPECT_FALSE(FrameCalibrationConfig{.q_heads = 1}.rope.has_value());
  EXPECT_EQ(ExplainRow{.head = 2}.query, 0);
  EXPECT_TRUE(cost::Layer{.q_heads = 1}.name.empty());
  EXPECT_TRUE(cost::ModelDescription{.id = "a"}.layers.empty());
  EXPECT_TRUE(cost::Machine{.id = "a"}.aliases.empty());
  EXPECT_FALSE(cost::Workload{.prompt = 1}.ring.has_value());
  EXPECT_FALSE(MergeArguments{.outs = {}}.sink.given());
  EXPECT_EQ(cost::StorageType{.name = "f32"}.name, "f32");
}

}  // namespace
}  // namespace polyhead
