#include "cli/probe.hpp"

#include <algorithm>
#include <unordered_set>

#include "base/splitmix64.hpp"
#include "cli/check_finite.hpp"
#include "cli/look_print.hpp"
#include "cli/table.hpp"
#include "models/head_observer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr std::size_t kShown = 10;  // heads with the highest induction score

/// Whether texts are made of a token: no control token, and one that the model has a row for.
bool is_ordinary(const models::ModelConfig& model, const models::Tokenizer& tokenizer,
                 std::int32_t id) {
  return id < model.vocab_size && !tokenizer.is_control(id);
}

/// Different ordinary tokens, twice.
std::vector<std::int32_t> repeated_tokens(const models::ModelConfig& model,
                                          const models::Tokenizer& tokenizer, std::int64_t length,
                                          std::uint64_t& dice) {
  const models::TokenizerSpec& spec = tokenizer.spec();
  std::vector<std::int32_t> ids;
  if (spec.first >= 0)
    ids.push_back(spec.first);
  else if (spec.add_bos && spec.bos >= 0)
    ids.push_back(spec.bos);
  const std::size_t begin = ids.size();
  std::unordered_set<std::int32_t> used(ids.begin(), ids.end());
  while (ids.size() < begin + static_cast<std::size_t>(length)) {
    const auto id = static_cast<std::int32_t>(base::splitmix64(dice) %
                                              static_cast<std::uint64_t>(tokenizer.size()));
    if (is_ordinary(model, tokenizer, id) && used.insert(id).second) ids.push_back(id);
  }
  const std::vector<std::int32_t> once(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
  ids.insert(ids.end(), once.begin(), once.end());
  return ids;
}

void run(const models::Model& model, const std::vector<std::int32_t>& ids,
         const models::RunOptions& options) {
  if (!model.config().causal) {
    std::vector<float> vector(static_cast<std::size_t>(model.config().model_dim));
    model.embed(std::vector<std::vector<std::int32_t>>(1, ids), vector.data(), options);
    return;
  }
  auto session = model.make_session(static_cast<std::int64_t>(ids.size()));
  model.forward(session, ids, models::Wanted::nothing, nullptr, options);
}

}  // namespace

void check_probe(const models::ModelConfig& model, const models::Tokenizer& tokenizer,
                 const ProbeOptions& options) {
  const auto refuse = [&](const std::string& found, std::int64_t needed) {
    throw InvalidArgument("look: --probe: the model's " + found + " (expected at least " +
                          std::to_string(needed) + " for " + std::to_string(options.length) +
                          " random tokens, twice)");
  };
  const std::int64_t context = model.context_length;
  std::int64_t words = 0;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id)
    words += is_ordinary(model, tokenizer, id) ? 1 : 0;
  if (context < 2 * options.length + 1) {
    refuse("context is " + std::to_string(context) + (context == 1 ? " token" : " tokens"),
           2 * options.length + 1);
  }
  if (words < 2 * options.length)
    refuse("vocabulary has " + std::to_string(words) + " ordinary tokens", 2 * options.length);
}

std::vector<ProbeScore> probe(const models::Model& model, const models::Tokenizer& tokenizer,
                              const ProbeOptions& options, const Console& console) {
  check_probe(model.config(), tokenizer, options);
  Progress progress(console);
  std::uint64_t dice = options.seed;
  std::vector<ProbeScore> scores;
  for (std::int64_t text = 0; text < options.texts; ++text) {
    progress.show("random text " + std::to_string(text + 1) + " of " +
                  std::to_string(options.texts));
    const std::vector<std::int32_t> ids =
        repeated_tokens(model.config(), tokenizer, options.length, dice);
    models::HeadObserverOptions gather;
    gather.rows = gather.received = false;
    gather.run = options.run;
    models::HeadObserver heads(model.config(), ids, {}, gather);
    run(model, ids, {&heads, nullptr});
    std::size_t at = 0;
    for (std::size_t layer = 0; layer < model.config().layers.size(); ++layer) {
      const HeadStatistics& of_layer = *heads.layer(static_cast<std::int64_t>(layer));
      for (std::int64_t head = 0; head < of_layer.heads(); ++head, ++at) {
        if (text == 0) scores.push_back({static_cast<std::int64_t>(layer), head, 0, 0, 0});
        const HeadMeasures m = of_layer.measures(head);
        const double part = 1.0 / static_cast<double>(options.texts);
        scores[at].induction += part * m[HeadTarget::induction].mean;
        scores[at].duplicate += part * m[HeadTarget::duplicate].mean;
        scores[at].previous += part * m[HeadTarget::previous].mean;
      }
    }
  }
  for (const ProbeScore& score : scores) {
    check_finite(score.induction + score.duplicate + score.previous, [&] {
      return "look: --probe: the score of head " + head_name(score.layer, score.head);
    });
  }
  return scores;
}

nlohmann::ordered_json probe_json(const std::vector<ProbeScore>& scores,
                                  const ProbeOptions& options) {
  nlohmann::ordered_json json{{"length", options.length},
                              {"texts", options.texts},
                              {"seed", options.seed},
                              {"heads", nlohmann::ordered_json::array()}};
  for (const ProbeScore& score : scores) {
    json["heads"].push_back({{"layer", score.layer},
                             {"head", score.head},
                             {"induction", score.induction},
                             {"duplicate", score.duplicate},
                             {"previous", score.previous}});
  }
  return json;
}

void print_probe(const Console& console, std::vector<ProbeScore> scores,
                 const ProbeOptions& options) {
  std::stable_sort(scores.begin(), scores.end(), [](const ProbeScore& a, const ProbeScore& b) {
    return a.induction > b.induction;
  });
  Table table = Table::numbers(3);
  table.header({"head", "induction", "duplicate", "previous"});
  for (std::size_t i = 0; i < std::min(kShown, scores.size()); ++i) {
    table.row({head_name(scores[i].layer, scores[i].head), fixed(scores[i].induction, 3),
               fixed(scores[i].duplicate, 3), fixed(scores[i].previous, 3)});
  }
  console.out << '\n'
              << console.styled(Style::heading, "On repeated random tokens") << ' '
              << console.styled(Style::faint, "(mean weight; " + std::to_string(options.length) +
                                                  " tokens twice, " +
                                                  std::to_string(options.texts) + " texts)")
              << '\n';
  table.print(console);
}

}  // namespace polyhead::cli
