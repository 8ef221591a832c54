#include "cli/explain_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "cli/explain_vectors.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

constexpr std::size_t kMaxKeys =
    24;  // lines of a row's table before the lightest keys are left out

/// "0·0 + 2·1" for short vectors of short numbers; else nothing.
std::string written_out(const std::vector<double>& q, const std::vector<double>& k) {
  if (q.size() > 4) return "";
  std::string text;
  const auto number = [](double value) {
    char shown[32];
    std::snprintf(shown, sizeof shown, "%.4g", value);
    return value < 0 ? "(" + std::string(shown) + ")" : std::string(shown);
  };
  for (std::size_t i = 0; i < q.size(); ++i)
    text += (i == 0 ? "" : " + ") + number(q[i]) + "·" + number(k[i]);
  return text;
}

/// The keys to print, in their order: all of them, or the heaviest.
std::vector<std::size_t> keys_to_print(const std::vector<double>& weights) {
  std::vector<std::size_t> keys(weights.size());
  for (std::size_t j = 0; j < keys.size(); ++j) keys[j] = j;
  if (keys.size() <= kMaxKeys) return keys;
  std::stable_sort(keys.begin(), keys.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  keys.resize(kMaxKeys);
  std::sort(keys.begin(), keys.end());
  return keys;
}

/// The table of one query row: a line a key, one of the sink where there is one, and the sums.
class RowTable {
 public:
  RowTable(const HeadNumbers& head, const Case& shown, const ExplainInput& input);

  void print(const Console& console) const;
  std::size_t width() const { return width_; }  ///< of the numbers of vectors

 private:
  using Cells = std::vector<std::string>;

  void set_columns();
  double exponential(double score) const {
    return !visible_ || score == -HUGE_VAL ? 0.0 : std::exp(score - largest_);
  }
  Cells key_cells(std::size_t j) const;
  Cells sink_cells() const;
  Cells sum_cells() const;

  const HeadNumbers& head_;
  const Case& shown_;
  const ExplainInput& input_;
  const std::vector<double>&masked_, &weights_, &dropped_;
  std::size_t width_;
  double largest_ = -HUGE_VAL;  // of the scores and the sink's logit
  bool visible_ = false;        // some key is; else there is no softmax
  bool products_ = false;       // written out
  std::vector<Table::Align> columns_;
  Cells header_;
  std::size_t exponentials_ = 0;  // the column of e^(s - max), behind that of the last score
};

RowTable::RowTable(const HeadNumbers& head, const Case& shown, const ExplainInput& input)
    : head_(head),
      shown_(shown),
      input_(input),
      masked_(head.masked[0]),
      weights_(head.weights[0]),
      dropped_(head.dropped[0]),
      width_(std::max({widest(head.q), widest(head.k), widest(head.v)})) {
  for (const double score : masked_) {
    largest_ = std::max(largest_, score);
    visible_ = visible_ || score != -HUGE_VAL;  // NaN too
  }
  if (shown.sinks) largest_ = std::max(largest_, head.sink);
  products_ = !head.k.empty() && !written_out(head.q[0], head.k[0]).empty();
  set_columns();
}

void RowTable::set_columns() {
  using Align = Table::Align;
  columns_ = {Align::left, Align::left};
  header_ = {"key", "  k"};
  const auto column = [&](const char* title, Align align) {
    columns_.push_back(align);
    header_.push_back(std::string("  ") + title);
  };
  if (products_) column("q · k", Align::left);
  column(products_ ? "" : "q · k", Align::right);
  column("scaled", Align::right);
  if (shown_.modified) column("modified", Align::right);
  if (shown_.masked) column("masked", Align::right);
  exponentials_ = columns_.size();
  column("e^(s - max)", Align::right);
  column("weight", Align::right);
  if (shown_.dropout > 0.0) column("after dropout", Align::right);
  column(shown_.dropout > 0.0 ? "that · v" : "weight · v", Align::left);
}

RowTable::Cells RowTable::key_cells(std::size_t j) const {
  Cells cells{token(input_.k_tokens, static_cast<std::int64_t>(j)),
              "  " + numbers(head_.k[j], width_)};
  if (products_) cells.push_back("  " + written_out(head_.q[0], head_.k[j]) + " =");
  cells.push_back((products_ ? "" : "  ") + fixed(head_.products[0][j]));
  cells.push_back("  " + fixed(head_.scaled[0][j]));
  if (shown_.modified) cells.push_back("  " + fixed(head_.modified[0][j]));
  if (shown_.masked) cells.push_back("  " + fixed(masked_[j]));
  cells.push_back("  " + fixed(exponential(masked_[j])));
  cells.push_back("  " + fixed(weights_[j]));
  if (shown_.dropout > 0.0) cells.push_back("  " + fixed(dropped_[j]));
  std::vector<double> share = head_.v[j];
  for (double& value : share) value = head_.visible[0][j] ? value * dropped_[j] : 0.0;
  cells.push_back("  " + numbers(share, width_));
  return cells;
}

RowTable::Cells RowTable::sink_cells() const {
  Cells cells(columns_.size());
  cells[0] = "sink";
  cells[exponentials_ - 1] = fixed(head_.sink);
  cells[exponentials_] = fixed(exponential(head_.sink));
  cells[exponentials_ + 1] = fixed(head_.sink_weights[0]);
  return cells;
}

RowTable::Cells RowTable::sum_cells() const {
  double total = shown_.sinks ? exponential(head_.sink) : 0.0;
  double weights = head_.sink_weights[0], dropped = 0.0;
  for (std::size_t j = 0; j < masked_.size(); ++j) {
    total += exponential(masked_[j]);
    weights += weights_[j];
    dropped += dropped_[j];
  }
  Cells cells(columns_.size());
  cells[0] = "sum";
  cells[exponentials_] = fixed(total);
  cells[exponentials_ + 1] = fixed(weights);
  if (shown_.dropout > 0.0) cells[exponentials_ + 2] = fixed(dropped);
  cells.back() = "  " + numbers(head_.output[0], width_);
  return cells;
}

void RowTable::print(const Console& console) const {
  Table table(columns_);
  table.header(header_);
  const std::vector<std::size_t> keys = keys_to_print(weights_);
  for (const std::size_t j : keys) table.row(key_cells(j));
  if (shown_.sinks) table.row(sink_cells());
  table.rule();
  table.row(sum_cells());
  table.print(console);
  if (keys.size() == masked_.size()) return;
  console.out << console.styled(Style::faint, "  The " + std::to_string(keys.size()) +
                                                  " heaviest of " +
                                                  grouped(static_cast<long long>(masked_.size())) +
                                                  " keys; --json prints them all.")
              << '\n';
}

}  // namespace

void print_head_row(const Console& console, const HeadNumbers& head, const Case& shown,
                    const ExplainInput& input) {
  const RowTable table(head, shown, input);
  console.out << "\n  q = [ " << numbers(head.q[0], table.width()) << " ]\n\n";
  table.print(console);
  console.out << "\n  output = [ " << numbers(head.output[0], table.width())
              << " ]   lse = " << fixed(head.lse[0]) << '\n';
}

}  // namespace polyhead::cli
