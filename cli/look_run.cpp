#include "cli/look_run.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "cli/check_finite.hpp"
#include "cli/stopwatch.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

/// Keeps a few rows of one layer, and hands blocks on to the report's own visitor.
class RowKeeper : public HeadRowVisitor {
 public:
  RowKeeper(std::int64_t layer, const LookData& look, const std::vector<std::int64_t>& rows,
            HeadRows& kept, std::mutex& lock)
      : layer_(layer), look_(look), rows_(rows), kept_(kept), lock_(lock) {}

  void pass_on_to(HeadRowVisitor* next) {
    next_ = next;
    sparse = next != nullptr && next->sparse;
    if (!sparse) return;
    threshold = next->threshold;
    least = next->least;
  }

  bool wants_full(std::int64_t head) const override {
    return (!rows_.empty() && chosen(head)) || (next_ != nullptr && next_->wants_full(head));
  }

  void visit(const HeadRowBlock& block) override {
    for (const std::int64_t query : rows_) {
      const std::int64_t r = query - block.first_query;
      if (r < 0 || r >= block.rows || !chosen(block.head)) continue;
      std::vector<float> row(look_.ids.size());
      std::copy_n(block.full + r * block.full_keys, block.full_keys, row.begin());
      const std::lock_guard guard(lock_);
      kept_[{layer_, block.head}][query] = std::move(row);
    }
    if (next_ == nullptr) return;
    HeadRowBlock part = block;
    if (!next_->wants_full(block.head)) part.full = nullptr, part.full_keys = 0;
    if (part.full != nullptr || part.offsets != nullptr) next_->visit(part);
  }

 private:
  bool chosen(std::int64_t head) const {
    return look_.chosen[static_cast<std::size_t>(layer_)][static_cast<std::size_t>(head)];
  }

  std::int64_t layer_;
  const LookData& look_;
  const std::vector<std::int64_t>& rows_;
  HeadRows& kept_;
  std::mutex& lock_;
  HeadRowVisitor* next_ = nullptr;
};

/// Rows for --rows and the report, and a line of progress.
class Watcher : public models::LayerWatcher {
 public:
  Watcher(const LookData& look, const LookWanted& wanted, HeadRows& kept, const Console& console)
      : look_(look), wanted_(wanted), progress_(console) {
    for (std::size_t i = 0; i < look.config->layers.size(); ++i) {
      keepers_.emplace_back(static_cast<std::int64_t>(i), look, wanted.rows, kept, lock_);
    }
  }

  HeadRowVisitor* rows_of(std::int64_t layer) override {
    HeadRowVisitor* const of_report =
        wanted_.report != nullptr ? wanted_.report->rows_of(layer) : nullptr;
    if (wanted_.rows.empty()) return of_report;
    RowKeeper& keeper = keepers_[static_cast<std::size_t>(layer)];
    keeper.pass_on_to(of_report);
    return &keeper;
  }

  void attended(const models::AttentionSeen& seen) override {
    check_rows(seen);
    if (wanted_.report != nullptr) wanted_.report->attended(seen);
    const std::int64_t rows = seen.call.q.layout.extents[1];
    progress_.show("layer " + std::to_string(seen.layer + 1) + " of " +
                   std::to_string(look_.config->layers.size()) + ", token " +
                   grouped(seen.first_query + rows) + " of " +
                   grouped(static_cast<std::int64_t>(look_.ids.size())));
  }

 private:
  /// Weights of a row are numbers where the logarithm of what they are divided by is one.
  static void check_rows(const models::AttentionSeen& seen) {
    const detail::Layout& layout = seen.call.lse.layout;
    const auto* const lse = static_cast<const float*>(seen.call.lse.data);
    for (std::int64_t i = 0; i < layout.extents[1]; ++i) {
      for (std::int64_t h = 0; h < layout.extents[2]; ++h) {
        const float value = lse[i * layout.strides[1] + h * layout.strides[2]];
        check_finite(static_cast<double>(value), [&] {
          return "look: the log-sum-exp of token " + std::to_string(seen.first_query + i) +
                 " in head " + std::to_string(seen.layer) + "." + std::to_string(h);
        });
      }
    }
  }

  const LookData& look_;
  const LookWanted& wanted_;
  Progress progress_;
  std::mutex lock_;
  std::vector<RowKeeper> keepers_;
};

/// The likeliest tokens; of equal logits the lower id first.
std::vector<LookData::Next> likeliest(const std::vector<float>& logits, std::size_t count) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
                    });
  double sum = 0;
  const double most = static_cast<double>(logit(order.front()));
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  std::vector<LookData::Next> top;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(logit(order[i]));
    top.push_back({order[i], x, std::exp(x - most) / sum});
  }
  return top;
}

void run_decoder(const models::Model& model, LookData& look, std::size_t next,
                 const models::RunOptions& options) {
  const std::span<const std::int32_t> ids = look.ids;
  auto session = model.make_session(static_cast<std::int64_t>(ids.size()));
  look.nll = std::numeric_limits<double>::quiet_NaN();
  if (ids.size() > 1) {
    std::vector<double> nats(ids.size() - 1);
    model.losses(session, ids.first(ids.size() - 1), ids.subspan(1), nats.data(), options);
    for (std::size_t i = 0; i < nats.size(); ++i)
      check_finite(nats[i], [&] { return "look: the loss of token " + std::to_string(i + 1); });
    look.nll = std::accumulate(nats.begin(), nats.end(), 0.0) / static_cast<double>(nats.size());
  }
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  model.forward(session, ids.last(1), models::Wanted::last, logits.data(), options);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    check_finite(static_cast<double>(logits[id]),
                 [&] { return "look: the logit of token id " + std::to_string(id); });
  }
  look.top = likeliest(logits, next);
}

}  // namespace

LookRun run_look(const models::Model& model, LookData& look, const LookWanted& wanted,
                 const Console& console) {
  LookRun run;
  if (wanted.report != nullptr) wanted.report->begin(look);
  Watcher watcher(look, wanted, run.rows, console);
  models::HeadObserverOptions options;
  options.run = wanted.run;
  options.watcher = &watcher;
  if (wanted.report != nullptr) options.maps = wanted.report->maps();
  for (const std::vector<bool>& heads : look.chosen) {
    options.layers.push_back(std::find(heads.begin(), heads.end(), true) != heads.end());
  }
  run.heads =
      std::make_unique<models::HeadObserver>(*look.config, look.ids, look.delimiters, options);
  const Stopwatch watch;
  const models::RunOptions run_options{run.heads.get(), nullptr};
  if (look.config->causal) {
    run_decoder(model, look, wanted.next, run_options);
  } else {
    look.embedding.resize(static_cast<std::size_t>(look.config->model_dim));
    const std::vector<std::vector<std::int32_t>> texts(1, look.ids);
    model.embed(texts, look.embedding.data(), run_options);
    for (const float x : look.embedding)
      check_finite(static_cast<double>(x), [] { return "look: the sentence vector"; });
  }
  look.seconds = watch.seconds();
  look.heads = run.heads.get();
  return run;
}

}  // namespace polyhead::cli
