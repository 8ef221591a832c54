// Latent attention against its definition in double, in both forms, and the promise of same bits.
#include "polyhead/latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "kernels/reference/attend.hpp"
#include "models/formats/safetensors.hpp"
#include "polyhead/isa.h"
#include "support/half_step.h"
#include "support/latent_model.h"
#include "support/refusal.h"

namespace {

using polyhead::ConstView;
using polyhead::ElementType;
using polyhead::Isa;
using polyhead::KvCache;
using polyhead::LatentAttention;
using polyhead::LatentConfig;
using polyhead::LatentForm;
using polyhead::LatentWeights;
using polyhead::LayerCall;
using polyhead::test::expect_same_bits;
using polyhead::test::kForms;
using polyhead::test::LatentModel;
using polyhead::test::random_floats;
using polyhead::test::run;
using polyhead::test::small_latent;
using Matrix = std::vector<std::vector<double>>;

double round_to(double value, ElementType type) {
  std::byte bytes[4];
  polyhead::base::store_float32(bytes, type, static_cast<float>(value));
  return polyhead::base::load_float32(bytes, type);
}

/// The definition, one sequence, in double; weights rounded to the weight type, and x as a layer
/// of that type reads it.
class Definition {
 public:
  explicit Definition(const LatentModel& model) : m_(model), c_(model.c) {}

  Matrix operator()(const std::vector<float>& x, std::int64_t tokens) const {
    return over(x, latents(rows_of(x, tokens)));
  }

  /// With the latents that a cache holds in the place of its own.
  Matrix over(const std::vector<float>& x, const Matrix& latents) const {
    const std::size_t n = latents.size();
    const Matrix rows = rows_of(x, static_cast<std::int64_t>(n));
    Matrix q = rows;
    if (c_.q_rank > 0) {
      q = times(rows, m_.w_q_down, c_.q_rank);
      for (auto& row : q) norm(row, c_.q_rank, m_.q_norm);
    }
    q = times(q, m_.w_q, c_.heads * query_dim());
    for (std::size_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < c_.heads; ++h) {
        turn(q[t].data() + h * query_dim() + c_.nope_dim, t);
      }
    }
    Matrix only(n);
    for (std::size_t t = 0; t < n; ++t) {
      only[t].assign(latents[t].begin(), latents[t].begin() + c_.kv_rank);
    }
    const Matrix up = times(only, m_.w_kv_up, c_.heads * (c_.nope_dim + c_.value_dim));
    return times(attend(q, latents, up), m_.w_o, c_.model_dim);
  }

 private:
  std::int64_t query_dim() const { return c_.nope_dim + c_.rope_dim; }

  Matrix rows_of(const std::vector<float>& x, std::int64_t tokens) const {
    Matrix rows(static_cast<std::size_t>(tokens));
    auto value = x.begin();
    for (auto& row : rows) {
      for (std::int64_t i = 0; i < c_.model_dim; ++i, ++value) {
        // Only bfloat16 layers round x.
        row.push_back(c_.weight_type == ElementType::bfloat16 ? rounded(*value) : *value);
      }
    }
    return rows;
  }

  Matrix latents(const Matrix& rows) const {
    Matrix latents = times(rows, m_.w_kv_down, c_.kv_rank + c_.rope_dim);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      norm(latents[t], c_.kv_rank, m_.kv_norm);
      turn(latents[t].data() + c_.kv_rank, t);
    }
    return latents;
  }

  double rounded(float value) const {
    return c_.weight_type == ElementType::float32 ? value : round_to(value, c_.weight_type);
  }

  Matrix times(const Matrix& x, const std::vector<float>& w, std::int64_t out) const {
    Matrix y(x.size());
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::size_t i = 0; i < x[t].size(); ++i) {
          sum += x[t][i] * rounded(w[static_cast<std::size_t>(o) * x[t].size() + i]);
        }
        y[t].push_back(sum);
      }
    }
    return y;
  }

  void norm(std::vector<double>& row, std::int64_t count, const std::vector<float>& weight) const {
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i)
      squares += row[static_cast<std::size_t>(i)] * row[static_cast<std::size_t>(i)];
    const double root = std::sqrt(squares / static_cast<double>(count) + c_.norm_eps);
    for (std::int64_t i = 0; i < count; ++i) {
      row[static_cast<std::size_t>(i)] *= weight[static_cast<std::size_t>(i)] / root;
    }
  }

  void turn(double* x, std::size_t position) const {
    if (c_.rope_dim == 0) return;
    const auto frequencies = polyhead::rope_frequencies(*c_.rope, c_.rope_dim);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      const double a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * std::cos(angle) - b * std::sin(angle);
      x[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }

  Matrix attend(const Matrix& q, const Matrix& latents, const Matrix& up) const {
    Matrix out(q.size());
    const double scale = 1.0 / std::sqrt(static_cast<double>(query_dim()));
    for (std::size_t t = 0; t < q.size(); ++t) {
      for (std::int64_t h = 0; h < c_.heads; ++h) {
        const std::size_t first = static_cast<std::size_t>(h * (c_.nope_dim + c_.value_dim));
        std::vector<double> scores;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (std::size_t key = 0; key <= t; ++key) {
          double s = 0;
          const double* const at = q[t].data() + h * query_dim();
          for (std::int64_t d = 0; d < c_.nope_dim; ++d) {
            s += at[d] * up[key][first + static_cast<std::size_t>(d)];
          }
          for (std::int64_t d = 0; d < c_.rope_dim; ++d) {
            s += at[c_.nope_dim + d] * latents[key][static_cast<std::size_t>(c_.kv_rank + d)];
          }
          scores.push_back(s * scale);
          largest = std::max(largest, scores.back());
        }
        for (double& s : scores) total += s = std::exp(s - largest);
        for (std::int64_t d = 0; d < c_.value_dim; ++d) {
          double sum = 0;
          for (std::size_t key = 0; key <= t; ++key) {
            sum += scores[key] * up[key][first + static_cast<std::size_t>(c_.nope_dim + d)];
          }
          out[t].push_back(sum / total);
        }
      }
    }
    return out;
  }

  const LatentModel& m_;
  const LatentConfig& c_;
};

/// What attention over `view`, of one sequence, reads as its keys.
Matrix keys_of(const polyhead::KvView& view, std::int64_t tokens, const LatentConfig& config) {
  const std::int64_t dim = config.kv_rank + config.rope_dim;
  std::vector<float> q(static_cast<std::size_t>(dim)), out(q);
  polyhead::AttentionArguments call;
  call.q = {q.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, dim}};
  call.kv = view;
  call.out = {out.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, config.kv_rank}};
  const polyhead::kernels::AttendCall resolved = polyhead::door::resolve(call);
  const polyhead::kernels::Sequence s = polyhead::kernels::sequence_of(resolved, 0);
  EXPECT_EQ(s.kv_len, tokens);
  Matrix keys(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < s.kv_len; ++t) {
    for (std::int64_t d = 0; d < dim; ++d) {
      keys[static_cast<std::size_t>(t)].push_back(
          polyhead::kernels::reference::key_element(resolved, s, resolved.k, s.k, 0, t, d));
    }
  }
  return keys;
}

/// Each within half a step of `type`; codes share a scale in blocks of 32 dims.
void expect_held(const std::vector<double>& row, const std::vector<double>& exact,
                 ElementType type) {
  ASSERT_EQ(row.size(), exact.size());
  double largest = 0;
  for (std::size_t d = 0; d < row.size(); ++d) {
    if (d % 32 == 0) {
      largest = 0;
      for (std::size_t i = d; i < std::min(d + 32, row.size()); ++i)
        largest = std::max(largest, std::abs(exact[i]));
    }
    EXPECT_LE(std::abs(row[d] - exact[d]), polyhead::test::half_step(type, exact[d], largest))
        << polyhead::element_name(type) << " dim " << d;
  }
}

/// Five products between x and y, whose values have a spread of about 1: the float32 roundings of a
/// sum of up to 60 terms, of either sign, add up as the root of 60 does; bfloat16 rounds once after
/// each.
constexpr double kFloat32Error = 8 * 5 * 0x1p-23, kBfloat16Error = 5 * 0x1p-8;

void expect_near(const std::vector<float>& y, const Matrix& expected, double error,
                 const std::string& what) {
  std::size_t i = 0;
  for (const auto& row : expected) {
    for (const double want : row) {
      ASSERT_LT(i, y.size()) << what;
      ASSERT_NEAR(y[i], want, error * (1 + std::abs(want))) << what << " at " << i;
      ++i;
    }
  }
  EXPECT_EQ(i, y.size()) << what;
}

TEST(LatentAttention, EqualsItsDefinitionInBothForms) {
  for (const Isa isa : polyhead::available_isas()) {
    for (const ElementType type :
         {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
      for (const std::int64_t q_rank : {0, 24}) {
        LatentConfig config = small_latent(q_rank);
        config.weight_type = type;
        const LatentModel model(config);
        const LatentAttention layer(config, model.weights(), {.isa = isa});
        constexpr std::int64_t kTokens = 37;
        const std::vector<float> x = random_floats(kTokens * config.model_dim, 11);
        const Matrix expected = Definition(model)(x, kTokens);
        for (const LatentForm form : kForms) {
          expect_near(run(layer, x, 1, kTokens, form), expected,
                      type == ElementType::bfloat16 ? kBfloat16Error : kFloat32Error,
                      std::string(polyhead::isa_name(isa)) + ' ' + polyhead::element_name(type) +
                          " q_rank " + std::to_string(q_rank) + " form " +
                          std::to_string(static_cast<int>(form)));
        }
      }
    }
  }
}

TEST(LatentAttention, SameBitsWholeChunkedAndTokenByToken) {
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    LatentConfig config = small_latent();
    config.weight_type = type;
    const LatentModel model(config);
    const LatentAttention one(config, model.weights(), {.threads = 1});
    const LatentAttention two(config, model.weights(), {.threads = 2});
    constexpr std::int64_t kTokens = 83;
    const std::int64_t dim = config.model_dim;
    const std::vector<float> x = random_floats(kTokens * dim, 12);
    for (const LatentForm form : kForms) {
      const std::vector<float> whole = run(one, x, 1, kTokens, form);
      expect_same_bits(whole, run(two, x, 1, kTokens, form), "two threads");
      for (const std::int64_t chunk : {1, 7, 64}) {
        KvCache cache(two.cache_config(1, 8, true));
        std::vector<float> y(whole.size(), NAN);
        for (std::int64_t at = 0; at < kTokens; at += chunk) {
          const std::int64_t count = std::min(chunk, kTokens - at);
          two.forward({x.data() + at * dim, {count, dim}}, cache,
                      {y.data() + at * dim, {count, dim}}, form);
        }
        expect_same_bits(whole, y, "chunks of " + std::to_string(chunk));
        EXPECT_EQ(cache.length(0), kTokens);
      }
    }
  }
}

TEST(LatentAttention, BatchEqualsItsMembersAndRaggedEqualsBoth) {
  const LatentConfig config = small_latent();
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  constexpr std::int64_t kTokens = 9;
  const std::int64_t dim = config.model_dim;
  std::vector<float> x = random_floats(2 * kTokens * dim, 13);
  const std::vector<float> first(x.begin(), x.begin() + kTokens * dim);
  const std::vector<float> second(x.begin() + kTokens * dim, x.begin() + (kTokens + 5) * dim);
  // The padding of the second sequence must not matter.
  std::fill(x.begin() + (kTokens + 5) * dim, x.end(), NAN);
  const std::int64_t lengths[] = {kTokens, 5};
  const std::int32_t offsets[] = {0, kTokens, kTokens + 5};
  for (const LatentForm form : kForms) {
    std::vector<float> alone = run(layer, first, 1, kTokens, form);
    const std::vector<float> other = run(layer, second, 1, 5, form);
    std::vector<float> padded = run(layer, x, 2, kTokens, form, {.lengths = {lengths, {2}}});
    padded.resize(static_cast<std::size_t>((kTokens + 5) * dim));
    alone.insert(alone.end(), other.begin(), other.end());
    expect_same_bits(alone, padded, "padded");
    std::vector<float> ragged(static_cast<std::size_t>((kTokens + 5) * dim), NAN);
    layer.forward({x.data(), {kTokens + 5, dim}}, {ragged.data(), {kTokens + 5, dim}}, form,
                  {.offsets = {offsets, {3}}});
    expect_same_bits(alone, ragged, "ragged");
  }
}

TEST(LatentAttention, CacheHoldsOneLatentATokenAndServesBothForms) {
  const LatentConfig config = small_latent();
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  KvCache cache(layer.cache_config(1, 16));
  EXPECT_EQ(cache.bytes(), 16 * (32 + 8) * 4);
  const std::int64_t dim = config.model_dim;
  const std::vector<float> x = random_floats(6 * dim, 14);
  std::vector<float> prompt(static_cast<std::size_t>(5 * dim)), next(static_cast<std::size_t>(dim));
  layer.forward({x.data(), {std::int64_t{5}, dim}}, cache, {prompt.data(), {std::int64_t{5}, dim}},
                LatentForm::expanded);
  layer.forward({x.data() + 5 * dim, {std::int64_t{1}, dim}}, cache,
                {next.data(), {std::int64_t{1}, dim}}, LatentForm::absorbed);
  // The latents are the same bits in either form, so the step equals the absorbed form's own.
  const std::vector<float> whole = run(layer, x, 1, 6, LatentForm::absorbed);
  expect_same_bits(next, {whole.end() - dim, whole.end()}, "absorbed after expanded");
}

// `{}` might be a call or a form.
TEST(LatentAttention, AFormThatIsNotNamedIsTheLayersOwn) {
  LatentConfig config = small_latent();
  for (const LatentForm form : kForms) {
    config.form = form;
    const LatentModel model(config);
    const LatentAttention layer(config, model.weights());
    const std::int64_t dim = config.model_dim;
    const std::vector<float> x = random_floats(70 * dim, 14);
    const std::vector<float> whole = run(layer, x, 1, 70, form);
    std::vector<float> y(whole.size());
    const polyhead::ConstView from(x.data(), {std::int64_t{70}, dim});
    const polyhead::View to(y.data(), {std::int64_t{70}, dim});
    layer.forward(from, to, {});
    expect_same_bits(whole, y, "alone");
    KvCache cache(layer.cache_config(1, 70));
    layer.forward(from, cache, to, {});
    expect_same_bits(whole, y, "cache");
    cache.truncate(0, 0);
    layer.forward(from, cache, to, LatentForm::configured);
    layer.forward(from, cache.view(), to, {});
    expect_same_bits(whole, y, "view");
  }
}

// What a cache of codes holds is what is read, also in the chunk that wrote it: the bits do not
// depend on the chunks. A narrow type rounds the latents and nothing else: each by at most half a
// step, and the outputs are the definition's over the rounded ones, as exactly as those of a cache
// of float32.
void expect_reads_any_cache(Isa isa) {
  const LatentConfig config = small_latent();
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights(), {.isa = isa});
  const std::int64_t dim = config.model_dim, tokens = 9;
  const std::vector<float> x = random_floats(tokens * dim, 14);
  Matrix exact;  // latents, as float32 holds them
  for (const ElementType type :
       {ElementType::float32, ElementType::float16, ElementType::bfloat16, ElementType::int8,
        ElementType::int4, ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    const std::string name =
        std::string(polyhead::isa_name(isa)) + " " + polyhead::element_name(type);
    std::vector<float> results[2];
    Matrix held;
    for (const std::int64_t chunk : {tokens, std::int64_t{1}}) {
      auto cache_config = layer.cache_config(1, tokens);
      cache_config.type = type;
      KvCache cache(cache_config);
      std::vector<float>& y = results[chunk == 1];
      y.assign(x.size(), NAN);
      for (std::int64_t t = 0; t < tokens; t += chunk) {
        layer.forward({x.data() + t * dim, {chunk, dim}}, cache, {y.data() + t * dim, {chunk, dim}},
                      LatentForm::absorbed);
      }
      held = keys_of(cache.view(), tokens, config);
    }
    expect_same_bits(results[0], results[1], name);
    if (type == ElementType::float32) exact = held;
    for (std::size_t t = 0; t < held.size(); ++t) expect_held(held[t], exact[t], type);
    EXPECT_EQ(held == exact, type == ElementType::float32) << name;
    expect_near(results[0], Definition(model).over(x, held), kFloat32Error, name);
  }
}

TEST(LatentAttention, TheAbsorbedFormReadsCachesOfAnyType) {
  for (const Isa isa : polyhead::available_isas()) expect_reads_any_cache(isa);
}

TEST(LatentAttention, TheExpandedFormReadsFloat32Alone) {
  const LatentConfig config = small_latent();
  const LatentAttention layer(config, LatentModel(config).weights());
  const std::int64_t dim = config.model_dim, tokens = 9;
  const std::vector<float> x = random_floats(tokens * dim, 14);
  auto cache_config = layer.cache_config(1, tokens);
  cache_config.type = ElementType::int8;
  KvCache cache(cache_config);
  std::vector<float> y(x.size());
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {tokens, dim}}, cache, {y.data(), {tokens, dim}},
                      LatentForm::expanded);
      },
      "cache is int8, expected float32 for the expanded form");
}

TEST(LatentAttention, DeepSeekShapesRunInBothForms) {
  LatentConfig config;
  config.model_dim = 96;
  config.heads = 4;
  config.q_rank = 48;
  config.kv_rank = 512;
  config.nope_dim = 128;
  config.rope_dim = 64;
  config.value_dim = 128;
  config.rope.emplace().pairing = polyhead::RopePairing::interleaved;
  config.mask = polyhead::causal(polyhead::Align::end);
  const LatentModel model(config);
  const LatentAttention layer(config, model.weights());
  const std::vector<float> x = random_floats(70 * config.model_dim, 15);
  const std::vector<float> a = run(layer, x, 1, 70, LatentForm::expanded);
  const std::vector<float> b = run(layer, x, 1, 70, LatentForm::absorbed);
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Sums of up to 512 products of values of about 1, in float32.
    ASSERT_NEAR(a[i], b[i], 512 * 0x1p-23 * (1 + std::abs(a[i]))) << i;
  }
}

TEST(LatentAttention, EqualsDeepSeekV3OfTransformers) {
  const polyhead::formats::Safetensors file(POLYHEAD_TEST_DATA "/latent.safetensors");
  const auto view = [&](const char* name) { return file.tensor(name).view; };
  LatentConfig config;
  config.model_dim = 32;
  config.heads = 3;
  config.q_rank = 20;
  config.kv_rank = 16;
  config.nope_dim = 12;
  config.rope_dim = 8;
  config.value_dim = 10;
  polyhead::RopeConfig& rope = config.rope.emplace();
  rope.pairing = polyhead::RopePairing::interleaved;
  rope.scaling = polyhead::RopeScaling::yarn;
  rope.factor = 4;
  rope.original_length = 16;
  rope.mscale = rope.mscale_all_dim = 1;
  config.mask = polyhead::causal(polyhead::Align::end);
  const auto numbers = [&](const char* name) { return static_cast<const float*>(view(name).data); };
  config.modifiers.scale = numbers("scale")[0];
  LatentWeights weights;
  weights.w_q_down = view("q_a_proj.weight");
  weights.q_norm = view("q_a_layernorm.weight");
  weights.w_q_up = view("q_b_proj.weight");
  weights.w_kv_down = view("kv_a_proj_with_mqa.weight");
  weights.kv_norm = view("kv_a_layernorm.weight");
  weights.w_kv_up = view("kv_b_proj.weight");
  weights.w_o = view("o_proj.weight");
  const LatentAttention layer(config, weights);
  constexpr std::int64_t kTokens = 23;
  const std::vector<float> x(numbers("x"), numbers("x") + kTokens * 32);
  for (const LatentForm form : kForms) {
    const std::vector<float> y = run(layer, x, 1, kTokens, form);
    for (std::size_t i = 0; i < y.size(); ++i) {
      // Both sides round float32 sums of up to 32 products of values of about 1.
      ASSERT_NEAR(y[i], numbers("y")[i], 2 * 32 * 0x1p-23) << i;
    }
  }
}

TEST(LatentAttention, RefusesWhatDoesNotFit) {
  const LatentConfig good = small_latent();
  const LatentModel model(good);
  const auto with = [&](auto change, const std::string& part) {
    LatentConfig config = good;
    LatentWeights weights = model.weights();
    change(config, weights);
    polyhead::test::expect_refusal([&] { LatentAttention layer(config, weights); }, part);
  };
  with([](auto& c, auto&) { c.kv_rank = 0; }, "kv_rank (0)");
  with([](auto& c, auto&) { c.kv_rank = 765; }, "kv_rank + rope_dim (773)");
  with([](auto& c, auto&) { c.rope.reset(); }, "rope is not given with rope_dim 8");
  with([](auto&, auto& w) { w.w_kv_up = {}; }, "w_kv_up");
  with([](auto&, auto& w) { w.w_q = w.w_q_up; }, "w_q is given, but q_rank is not 0");
  with([](auto& c, auto&) { c.q_rank = 0; }, "w_q_down is given, but q_rank is 0");
  with([](auto& c, auto&) { c.heads = 5; }, "w_q_up");
  with([](auto& c, auto&) { c.form = LatentForm::configured; },
       "form (0) is not expanded or absorbed");
  with([](auto& c, auto&) { c.modifiers.soft_cap = 1e31f; }, "modifiers.soft_cap (1e+31)");

  const LatentAttention layer(good, model.weights());
  std::vector<float> x(static_cast<std::size_t>(2 * good.model_dim)), y = x;
  KvCache wrong({.batch = 1, .kv_heads = 1, .head_dim = 40, .value_dim = 32, .capacity = 4});
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, wrong, {y.data(), {2, 40}});
      },
      "values_in_keys");
  KvCache full(layer.cache_config(1, 1));
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, full, {y.data(), {2, 40}});
      },
      "exceed the capacity (1)");
  EXPECT_EQ(full.length(0), 0);
  KvCache cache(layer.cache_config(1, 8));
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, cache, {y.data(), {2, 40}},
                      {.bias = {x.data(), {1, 1, 7, 1}}});
      },
      "bias");
  EXPECT_EQ(cache.length(0), 0) << "what was appended is taken back";

  const std::int32_t lengths[] = {1};
  const polyhead::LayerCall of_context{.context_lengths = {lengths, {1}}};
  const std::string message =
      "LatentAttention::forward: context_lengths are given without a context";
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, {y.data(), {2, 40}}, of_context);
      },
      message);
  polyhead::test::expect_refusal(
      [&] {
        layer.forward({x.data(), {2, 40}}, cache, {y.data(), {2, 40}}, of_context);
      },
      message);
  EXPECT_EQ(cache.length(0), 0);
}

}  // namespace
