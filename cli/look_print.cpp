#include "cli/look_print.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cli/model_options.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kNamesShown = 6;  // heads named beside a role's count
constexpr std::size_t kTelling = 3;     // heads shown for each target

/// null where not measurable: JSON has no NaN.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json measures_json(const HeadMeasures& m) {
  ordered_json json;
  json["role"] = head_role_name(m.role);
  json["mean_entropy"] = number(m.mean_entropy);
  json["first"] = number(m.first);
  json["spread"] = number(m.spread);
  json["mean_distance"] = number(m.mean_distance);
  json["mean_largest"] = number(m.mean_largest);
  for (int t = 0; t < kHeadTargets; ++t) {
    const auto target = static_cast<HeadTarget>(t);
    json["targets"][head_target_name(target)] = {{"mean", number(m[target].mean)},
                                                 {"chance", number(m[target].mean_chance)},
                                                 {"share", number(m[target].share)},
                                                 {"share_chance", number(m[target].share_chance)},
                                                 {"rows", m[target].rows}};
  }
  return json;
}

std::string percent(double value) {
  return std::isfinite(value) ? fixed(100 * value, 1) + " %" : "-";
}

std::string quoted(std::string_view bytes) { return "'" + printable(bytes) + "'"; }

void print_roles(const Console& console, const std::vector<ChosenHead>& heads) {
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::left});
  table.header({"role", "heads", ""});
  for (int r = 0; r < kHeadRoles; ++r) {
    std::size_t count = 0;
    std::string names;
    for (const ChosenHead& head : heads) {
      if (head.measures.role != static_cast<HeadRole>(r)) continue;
      if (++count <= kNamesShown)
        names += (count > 1 ? " " : "") + head_name(head.layer, head.head);
    }
    if (count > kNamesShown) names += " ...";
    table.row({head_role_name(static_cast<HeadRole>(r)), std::to_string(count), names});
  }
  console.out << console.styled(Style::heading, "Heads by role in this text") << '\n';
  table.print(console);
}

void print_telling(const Console& console, const std::vector<ChosenHead>& heads) {
  using Align = Table::Align;
  Table table({Align::left, Align::left, Align::right, Align::right, Align::right});
  table.header({"weight on", "head", "share", "by chance", "mean weight"});
  for (int t = 0; t < kHeadTargets; ++t) {
    const auto target = static_cast<HeadTarget>(t);
    std::vector<const ChosenHead*> order;
    for (const ChosenHead& head : heads) {
      const bool resting = head.measures.role == HeadRole::resting;  // shares of next to nothing
      if (std::isfinite(head.measures[target].share) && !resting) order.push_back(&head);
    }
    const std::size_t shown = std::min(kTelling, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown),
                      order.end(), [&](const ChosenHead* a, const ChosenHead* b) {
                        const double x = a->measures[target].share, y = b->measures[target].share;
                        return x != y ? x > y : a < b;
                      });
    if (shown == 0) table.row({head_target_name(target), "not measurable", "", "", ""});
    for (std::size_t i = 0; i < shown; ++i) {
      const TargetMass& mass = order[i]->measures[target];
      table.row({i == 0 ? head_target_name(target) : "", head_name(order[i]->layer, order[i]->head),
                 percent(mass.share), percent(mass.share_chance), fixed(mass.mean, 3)});
    }
  }
  console.out << '\n'
              << console.styled(Style::heading, "The most telling heads") << ' '
              << console.styled(Style::faint, "(share of the weight outside the first token)")
              << '\n';
  table.print(console);
}

void print_each(const Console& console, const std::vector<ChosenHead>& heads) {
  using Align = Table::Align;
  std::vector<Align> columns(12, Align::right);
  columns[0] = columns[1] = Align::left;
  Table table(columns);
  std::vector<std::string> header{"head", "role", "bits", "first", "spread", "distance"};
  for (int t = 0; t < kHeadTargets; ++t) {
    header.emplace_back(head_target_name(static_cast<HeadTarget>(t)));
  }
  table.header(header);
  const auto cell = [](double value, int digits) {
    return std::isfinite(value) ? fixed(value, digits) : std::string("-");
  };
  for (const ChosenHead& head : heads) {
    const HeadMeasures& m = head.measures;
    std::vector<std::string> row{head_name(head.layer, head.head),
                                 head_role_name(m.role),
                                 cell(m.mean_entropy / std::numbers::ln2, 2),
                                 cell(m.first, 3),
                                 cell(m.spread, 3),
                                 cell(m.mean_distance, 1)};
    for (const TargetMass& target : m.targets) row.push_back(cell(target.share, 3));
    table.row(std::move(row));
  }
  console.out << '\n'
              << console.styled(Style::heading, "Each head") << ' '
              << console.styled(Style::faint,
                                "(entropy in bits; targets: share outside the first token)")
              << '\n';
  table.print(console);
}

void print_next(const Console& console, const LookData& look) {
  using Align = Table::Align;
  if (look.top.empty()) return;
  Table table({Align::left, Align::right, Align::right});
  table.header({"next token", "probability", "logit"});
  for (const LookData::Next& next : look.top) {
    const bool known = next.id < look.tokenizer->size();  // logits may be padded
    table.row({known ? quoted(look.tokenizer->bytes(next.id)) : "", percent(next.probability),
               fixed(next.logit, 3)});
  }
  console.out << '\n' << console.styled(Style::heading, "What comes next") << '\n';
  table.print(console);
  if (std::isfinite(look.nll)) {
    console.out << "\n  mean negative log-likelihood " << fixed(look.nll) << " nats a token\n";
  }
}

}  // namespace

std::string head_name(std::int64_t layer, std::int64_t head) {
  return std::to_string(layer) + "." + std::to_string(head);
}

std::vector<ChosenHead> chosen_heads(const LookData& look) {
  std::vector<ChosenHead> list;
  for (std::size_t layer = 0; layer < look.chosen.size(); ++layer) {
    const models::LayerGeometry& geometry = look.config->layers[layer];
    for (std::size_t head = 0; head < look.chosen[layer].size(); ++head) {
      if (!look.chosen[layer][head]) continue;
      const auto l = static_cast<std::int64_t>(layer), h = static_cast<std::int64_t>(head);
      list.push_back(
          {l, h, h / (geometry.q_heads / geometry.kv_heads), look.heads->layer(l)->measures(h)});
    }
  }
  return list;
}

ordered_json look_json(const LookData& look, const HeadRows& rows) {
  ordered_json json;
  json["model"] = model_title(*look.file);
  json["weights"] = look.weights;
  json["tokens"] = ordered_json::array();
  for (std::size_t i = 0; i < look.ids.size(); ++i) json["tokens"].push_back(token_bytes(look, i));
  json["ids"] = look.ids;
  json["heads"] = ordered_json::array();
  for (const ChosenHead& head : chosen_heads(look)) {
    ordered_json entry{{"layer", head.layer}, {"head", head.head}, {"kv_head", head.kv_head}};
    entry.update(measures_json(head.measures));
    const auto kept = rows.find({head.layer, head.head});
    if (kept != rows.end()) {
      for (const auto& [query, weights] : kept->second) {
        entry["rows"][std::to_string(query)] = weights;
      }
    }
    json["heads"].push_back(std::move(entry));
  }
  if (!look.config->causal) {
    json["embedding"] = look.embedding;
    return json;
  }
  json["top"] = ordered_json::array();
  for (const LookData::Next& next : look.top) json["top"].push_back({next.id, next.logit});
  json["nll"] = number(look.nll);
  return json;
}

namespace {

/// "30 layers", or "2 of 30 layers" where heads of two are looked at.
std::string layers_text(const LookData& look) {
  const auto chosen = std::ranges::count_if(look.chosen, [](const std::vector<bool>& heads) {
    return std::ranges::find(heads, true) != heads.end();
  });
  const std::int64_t all = std::ssize(look.config->layers);
  return (chosen < all ? std::to_string(chosen) + " of " : std::string()) + std::to_string(all) +
         (all == 1 ? " layer" : " layers");
}

}  // namespace

void print_look(const Console& console, const LookData& look, bool each) {
  const std::vector<ChosenHead> heads = chosen_heads(look);
  const auto tokens = static_cast<long long>(look.ids.size());
  console.out << printable(model_title(*look.file)) << ", " << look.file->weight_format()
              << " run as " << look.weights << ": " << grouped(tokens)
              << (tokens == 1 ? " token, " : " tokens, ") << heads.size()
              << (heads.size() == 1 ? " head in " : " heads in ") << layers_text(look) << ", "
              << fixed(look.seconds, 2) << " s\n\n";
  print_roles(console, heads);
  print_telling(console, heads);
  if (each) print_each(console, heads);
  print_next(console, look);
  if (!look.embedding.empty()) {
    console.out << "\n  sentence vector of " << look.embedding.size() << " numbers (--json)\n";
  }
}

}  // namespace polyhead::cli
