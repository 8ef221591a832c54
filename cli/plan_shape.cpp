#include "cli/plan_shape.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/command.hpp"
#include "cli/option_checks.hpp"
#include "cli/plan_input.hpp"

namespace polyhead::cli {
namespace {

std::int64_t or_else(const char* option, const std::string& text, std::int64_t otherwise) {
  return text.empty() ? otherwise : parse_count(option, text);
}

}  // namespace

void PlanShape::add_options(CLI::App& app) {
  const auto size = [&](const char* option, std::string& to, const char* what) {
    return app.add_option(option, to, what)
        ->type_name("N")
        ->group("A model of your own")
        ->check(not_empty());
  };
  size("--layers", layers, "Layers");
  size("--model-dim", model_dim, "Columns of x (default: q_heads * head_dim)");
  size("--q-heads", q_heads, "Query heads");
  auto* dim = size("--head-dim", head_dim, "Elements of one head of q and k");
  size("--value-dim", value_dim, "Elements of one head of v (default: head_dim, MLA: nope_dim)");
  size("--window", window, "Keys a query sees, itself included (default: all)");
  auto* columns = size("--ffn", ffn, "Columns of the feed-forward (default: none)");
  auto* words = size("--vocab", vocab, "Vocabulary (default: none)");
  auto* all = size("--experts", experts, "Experts; --ffn is then of one")->needs(columns);
  size("--experts-used", experts_used, "Experts a token takes")->needs(all);
  auto* latent = size("--kv-rank", kv_rank, "MLA: columns of the cached latent")->excludes(dim);
  size("--q-rank", q_rank, "MLA: columns of the query latent (default: none)")->needs(latent);
  size("--nope-dim", nope_dim, "MLA: of each head, without position")->needs(latent);
  size("--rope-dim", rope_dim, "MLA: of each head, with position")->needs(latent);
  app.add_flag("--untied", untied, "The output matrix is one of its own")
      ->needs(words)
      ->group("A model of your own");
  app.add_flag("--plain-ffn", plain_ffn, "The feed-forward has two matrices, not three")
      ->needs(columns)
      ->group("A model of your own");
}

bool PlanShape::given() const {
  for (const std::string* size :
       {&layers, &model_dim, &q_heads, &head_dim, &value_dim, &window, &ffn, &vocab, &q_rank,
        &kv_rank, &nope_dim, &rope_dim, &experts, &experts_used}) {
    if (!size->empty()) return true;
  }
  return untied || plain_ffn;
}

cost::ModelDescription PlanShape::model() const {
  if (layers.empty() || q_heads.empty())
    throw UsageError("a MODEL is needed, or --layers and --q-heads (polyhead plan --list)");
  cost::Layer layer;
  layer.count = parse_some("--layers", layers);
  layer.q_heads = parse_some("--q-heads", q_heads);
  layer.latent = {or_else("--q-rank", q_rank, 0), or_else("--kv-rank", kv_rank, 0),
                  or_else("--nope-dim", nope_dim, 0), or_else("--rope-dim", rope_dim, 0)};
  const std::int64_t latent_dim = layer.latent.nope_dim + layer.latent.rope_dim;
  if (layer.latent.given() && latent_dim == 0)
    throw UsageError("--kv-rank needs --nope-dim, --rope-dim or both");
  if (head_dim.empty() && model_dim.empty() && !layer.latent.given())
    throw UsageError("--head-dim or --model-dim is needed");
  const std::int64_t columns = or_else("--model-dim", model_dim, 0);
  const bool divides = columns % layer.q_heads == 0;
  if (head_dim.empty() && !layer.latent.given() && !divides) {
    throw UsageError("--model-dim (" + std::to_string(columns) +
                     ") is not a multiple of --q-heads (" + std::to_string(layer.q_heads) +
                     "); give --head-dim");
  }
  layer.head_dim =
      layer.latent.given() ? latent_dim : or_else("--head-dim", head_dim, columns / layer.q_heads);
  if (layer.latent.given() && layer.latent.nope_dim == 0 && value_dim.empty())
    throw UsageError("--kv-rank without --nope-dim needs --value-dim");
  layer.value_dim = or_else("--value-dim", value_dim,
                            layer.latent.given() ? layer.latent.nope_dim : layer.head_dim);
  layer.model_dim =
      columns > 0 ? columns
                  : layer.q_heads * std::min(layer.head_dim, cost::kUnlimited / layer.q_heads);
  layer.kv_heads = layer.q_heads;
  layer.window = or_else("--window", window, 0);
  layer.ffn.ffn_dim = or_else("--ffn", ffn, 0);
  layer.ffn.gated = !plain_ffn;
  layer.ffn.experts = or_else("--experts", experts, 0);
  if (!experts.empty() && experts_used.empty())
    throw UsageError("--experts-used is needed with --experts: how many a token takes");
  layer.ffn.experts_used = or_else("--experts-used", experts_used, 0);
  layer.norm_parameters = 2 * layer.model_dim;
  cost::ModelDescription model;
  model.id = kOwnModel;
  model.name = "a model of your own";
  model.source = "options";
  model.layers = {layer};
  model.vocab_size = or_else("--vocab", vocab, 0);
  model.tied_output = !untied;
  model.other_parameters = layer.model_dim;
  return model;
}

}  // namespace polyhead::cli
