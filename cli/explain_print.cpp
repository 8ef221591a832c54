#include "cli/explain_print.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/explain_row.hpp"
#include "cli/explain_vectors.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

constexpr std::size_t kMaxColumns = 16;  // keys a matrix shows side by side before it is cut
constexpr std::size_t kMaxLines = 32;    // lines of a table before it is cut in the middle

void step(const Console& console, int& number, const std::string& title,
          const std::string& remark = "") {
  console.out << '\n'
              << "  " << console.styled(Style::heading, std::to_string(++number) + "  " + title);
  if (!remark.empty()) console.out << console.styled(Style::faint, "   " + remark);
  console.out << '\n';
}

/// A square root where it is one: "1/√2 = 0.7071".
std::string scale_text(const Case& shown) {
  const double root = 1.0 / std::sqrt(static_cast<double>(shown.head_dim));
  std::string value = fixed(shown.scale);
  if (std::abs(shown.scale - root) > 1e-6 * root) return value;
  return "1/√" + std::to_string(shown.head_dim) + " = " + value;
}

std::string columns_text(const Columns& c) {
  if (c.count() == 1) return "column " + std::to_string(c.first);
  return "columns " + std::to_string(c.first) + "-" + std::to_string(c.last);
}

std::string head_title(const HeadNumbers& head, const ExplainInput& input) {
  std::string title = "Head " + std::to_string(head.head);
  const auto h = static_cast<std::size_t>(head.head);
  if (h < input.columns.size()) {
    const Columns &c = input.columns[h], &value = input.value_columns[h];
    title += "   " + columns_text(c);
    title += value == c ? " of q, k and v" : " of q and k, " + columns_text(value) + " of v";
  } else if (head.kv_head != head.head) {
    title += "   reads key/value head " + std::to_string(head.kv_head);
  }
  return title;
}

void print_line_under(const Console& console, const std::string& title) {
  std::string line;
  for (std::size_t i = 0; i < std::max<std::size_t>(display_width(title), 40); ++i) line += "─";
  console.out << '\n'
              << console.styled(Style::key, title) << '\n'
              << console.styled(Style::faint, line) << '\n';
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const int i : chosen(tokens.size(), kMaxColumns)) {
    text += (text.empty() ? "" : " ") + (i < 0 ? std::string("…") : token(tokens, i));
  }
  return text;
}

void print_title(const Console& console, const Case& shown, const ExplainInput& input) {
  console.out << console.styled(Style::heading, "Attention(Q, K, V) = softmax(scale · Q Kᵀ) V")
              << "\n\n";
  Table table({Table::Align::left, Table::Align::left});
  table.row({"tokens", std::to_string(input.k_tokens.size()) + "   " + joined(input.k_tokens)});
  if (input.q_tokens != input.k_tokens) {
    table.row({"queries", std::to_string(input.q_tokens.size()) + "   " + joined(input.q_tokens)});
  }
  std::string heads = std::to_string(shown.q_heads) + "   of " + std::to_string(shown.head_dim) +
                      (shown.head_dim == 1 ? " dimension" : " dimensions") +
                      (shown.q_heads == 1 ? "" : " each");
  table.row({"heads", heads});
  table.row({"scale", scale_text(shown)});
  const std::vector<std::string> mask =
      shown.mask.empty() ? std::vector<std::string>{"none: every token sees every token"}
                         : shown.mask;
  for (const std::string& line : mask) table.row({&line == mask.data() ? "mask" : "", line});
  table.print(console);
}

/// A line for each of `count` things, `cells(i)`, with the middle left out where there are too
/// many.
template <class Cells>
void add_lines(Table& table, std::size_t count, const Cells& cells) {
  for (const int i : chosen(count, kMaxLines)) {
    table.row(i < 0 ? std::vector<std::string>{"…"} : cells(static_cast<std::size_t>(i)));
  }
}

void print_vectors(const Console& console, const HeadNumbers& head, const Case& shown,
                   const ExplainInput& input) {
  using Cells = std::vector<std::string>;
  using Align = Table::Align;
  const std::size_t width = std::max({widest(head.q), widest(head.k), widest(head.v)});
  const auto cell = [&](const std::vector<double>& vector) {
    return "  " + numbers(vector, width);
  };
  const auto key = [&](std::size_t j) {
    return token(input.k_tokens, static_cast<std::int64_t>(j));
  };
  // Of a padded sequence only the valid keys are there, and all of its queries.
  const bool joint = input.q_tokens == input.k_tokens && head.q.size() == head.k.size() &&
                     shown.queries.size() == input.k_tokens.size();
  if (joint) {
    Table table({Align::left, Align::left, Align::left, Align::left});
    table.header({"", "  query q", "  key k", "  value v"});
    add_lines(table, head.k.size(), [&](std::size_t i) {
      return Cells{key(i), cell(head.q[i]), cell(head.k[i]), cell(head.v[i])};
    });
    return table.print(console);
  }
  Table queries({Align::left, Align::left});
  queries.header({"", "  query q"});
  add_lines(queries, shown.queries.size(), [&](std::size_t row) {
    return Cells{token(input.q_tokens, shown.queries[row]), cell(head.q[row])};
  });
  queries.print(console);
  Table keys({Align::left, Align::left, Align::left});
  keys.header({"", "  key k", "  value v"});
  add_lines(keys, head.k.size(), [&](std::size_t j) {
    return Cells{key(j), cell(head.k[j]), cell(head.v[j])};
  });
  keys.print(console);
}

/// One more column behind those of the keys.
struct LastColumn {
  std::string title;
  const std::vector<double>* numbers;
};

/// A line a query, a column a key.
void print_pairs(const Console& console, const Matrix& pairs, const Case& shown,
                 const ExplainInput& input, const std::vector<LastColumn>& last = {}) {
  const std::vector<int> keys = chosen(pairs.empty() ? 0 : pairs.front().size(), kMaxColumns);
  Table table = Table::numbers(keys.size() + last.size());
  std::vector<std::string> header{""};
  for (const int j : keys) header.push_back(j < 0 ? "…" : token(input.k_tokens, j));
  for (const LastColumn& column : last) header.push_back("  " + column.title);
  table.header(std::move(header));
  add_lines(table, pairs.size(), [&](std::size_t i) {
    std::vector<std::string> cells{token(input.q_tokens, shown.queries[i])};
    for (const int j : keys) {
      cells.push_back(j < 0 ? "…" : fixed(pairs[i][static_cast<std::size_t>(j)]));
    }
    for (const LastColumn& column : last) cells.push_back("  " + fixed((*column.numbers)[i]));
    return cells;
  });
  table.print(console);
}

/// The softmax of each line, and what dropout leaves of it.
void print_weights(const Console& console, int& number, const HeadNumbers& head, const Case& shown,
                   const ExplainInput& input) {
  std::string remark = "softmax of each line; lse is the logarithm of its denominator";
  std::vector<LastColumn> last{{"lse", &head.lse}};
  if (shown.sinks) {
    remark = "softmax of each line and the sink's logit, " + fixed(head.sink) +
             "; lse is the logarithm of its denominator";
    last.insert(last.begin(), {"sink", &head.sink_weights});
  }
  step(console, number, "Weights", remark);
  print_pairs(console, head.weights, shown, input, last);
  if (shown.dropout == 0.0) return;
  step(console, number, "Weights after dropout",
       "dropped ones are 0, the others divided by " + fixed(1.0 - shown.dropout));
  print_pairs(console, head.dropped, shown, input);
}

/// A line a query and its vector, heads set apart where `dim` is given.
void print_rows(const Console& console, const Matrix& rows, const Case& shown,
                const ExplainInput& input, std::int64_t dim = 0) {
  const std::size_t width = widest(rows);
  const std::size_t heads =
      dim > 0 && !rows.empty() ? rows.front().size() / static_cast<std::size_t>(dim) : 1;
  const bool long_vectors = dim > static_cast<std::int64_t>(kMaxNumbers);
  const std::vector<int> blocks = chosen(heads, long_vectors ? kCutNumbers : kMaxNumbers);
  Table table(std::vector<Table::Align>(blocks.size() + 1, Table::Align::left));
  std::vector<std::string> header{""};
  for (const int h : blocks)
    header.push_back(h < 0 ? "…" : heads > 1 ? "  head " + std::to_string(h) : "");
  if (heads > 1) table.header(std::move(header));
  add_lines(table, rows.size(), [&](std::size_t i) {
    std::vector<std::string> cells{token(input.q_tokens, shown.queries[i])};
    const auto each = static_cast<std::ptrdiff_t>(rows[i].size() / heads);
    for (const int h : blocks) {
      const auto begin = rows[i].begin() + std::max(h, 0) * each;
      cells.push_back(h < 0 ? "…" : "  " + numbers({begin, begin + each}, width));
    }
    return cells;
  });
  table.print(console);
}

void print_plain_matrix(const Console& console, const Matrix& matrix) {
  Table table({Table::Align::left});
  const std::size_t width = widest(matrix);
  for (const int i : chosen(matrix.size(), kMaxColumns)) {
    table.row({i < 0 ? "…" : numbers(matrix[static_cast<std::size_t>(i)], width)});
  }
  table.print(console);
}

void print_result(const Console& console, const Case& shown, const ExplainInput& input,
                  const std::vector<Pruned>& pruned) {
  int number = 0;
  print_line_under(console, shown.q_heads == 1 ? "Result" : "All heads");
  if (shown.q_heads > 1) {
    step(console, number, "Mean of the heads' weights");
    print_pairs(console, shown.mean_weights, shown, input);
  }
  step(console, number, "Output", shown.q_heads > 1 ? "the heads' outputs side by side" : "");
  print_rows(console, shown.concatenated, shown, input, shown.value_dim);
  if (!shown.w_o.empty()) {
    step(console, number, "Output projection W_O");
    print_plain_matrix(console, shown.w_o);
    step(console, number, "Projected output", "output · W_O");
    print_rows(console, shown.projected, shown, input);
  }
  for (const Pruned& one : pruned) {
    step(console, number, "Output without head " + std::to_string(one.head),
         "moves by " + fixed(one.norm) + " (L2 norm of the difference)");
    print_rows(console, one.output, shown, input);
  }
}

bool all_finite(const Matrix& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const std::vector<double>& row) {
    return std::all_of(row.begin(), row.end(), [](double value) { return std::isfinite(value); });
  });
}

/// How attention()'s output compares with the one shown.
std::string agreement(const Case& shown) {
  if (!std::isfinite(shown.difference)) {
    return "differs in what is NaN or infinite: it computes in float32, where numbers beyond "
           "3.4e+38 are infinite and weights below 1.2e-38 of the largest are 0";
  }
  char difference[32];
  std::snprintf(difference, sizeof difference, "%.1e", shown.difference);
  return std::string("gives the same to ") + difference +
         (all_finite(shown.concatenated) ? "" : ", with NaN and infinities in the same places");
}

/// What follows the heads: means, concatenation, projection, pruning; and the library's own answer.
void print_all_heads(const Console& console, const Case& shown, const ExplainInput& input,
                     const std::vector<Pruned>& pruned) {
  // A single head's output stands above already.
  if (shown.q_heads > 1 || !shown.w_o.empty() || !pruned.empty()) {
    print_result(console, shown, input, pruned);
  }
  const bool cut =
      shown.kv_len > static_cast<std::int64_t>(kMaxColumns) ||
      std::max(shown.head_dim, shown.value_dim) > static_cast<std::int64_t>(kMaxNumbers);
  if (cut) {
    console.out << '\n'
                << console.styled(Style::faint,
                                  "  … stands for what is left out; --json prints it all.")
                << '\n';
  }
  console.out << '\n'
              << console.styled(Style::faint, "  Computed in double precision; attention() on " +
                                                  shown.isa + " " + agreement(shown) + ".")
              << '\n';
}

}  // namespace

void print_matrices(const Console& console, const Case& shown, const ExplainInput& input,
                    const std::vector<Pruned>& pruned) {
  print_title(console, shown, input);
  for (const HeadNumbers& head : shown.heads) {
    int number = 0;
    print_line_under(console, head_title(head, input));
    step(console, number, "Queries, keys and values");
    print_vectors(console, head, shown, input);
    step(console, number, "Scores", "q · k, a line a query, a column a key");
    print_pairs(console, head.products, shown, input);
    step(console, number, "Scaled scores", "times " + scale_text(shown));
    print_pairs(console, head.scaled, shown, input);
    if (shown.modified) {
      step(console, number, "Modified scores", "soft-cap, bias, ALiBi");
      print_pairs(console, head.modified, shown, input);
    }
    if (shown.masked) {
      step(console, number, "Masked scores", "hidden pairs become -inf");
      print_pairs(console, head.masked, shown, input);
    }
    print_weights(console, number, head, shown, input);
    step(console, number, shown.q_heads > 1 ? "Output of the head" : "Output",
         shown.dropout > 0.0 ? "weights after dropout · v" : "weights · v");
    print_rows(console, head.output, shown, input);
  }
  print_all_heads(console, shown, input, pruned);
}

void print_row(const Console& console, const Case& shown, const ExplainInput& input,
               const std::vector<Pruned>& pruned) {
  print_title(console, shown, input);
  const std::int64_t query = shown.queries.front();
  console.out << '\n'
              << console.styled(Style::heading, "Query " + std::to_string(query) + "   " +
                                                    token(input.q_tokens, query))
              << '\n';
  for (const HeadNumbers& head : shown.heads) {
    print_line_under(console, head_title(head, input));
    print_head_row(console, head, shown, input);
  }
  print_all_heads(console, shown, input, pruned);
}

}  // namespace polyhead::cli
