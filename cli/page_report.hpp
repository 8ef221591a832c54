// What `polyhead look -o` gathers for a page, within the page's budget.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/look_data.hpp"
#include "cli/page.hpp"
#include "cli/page_rows.hpp"

namespace polyhead::cli {

/// Sizes of docs/page.md; tests make them small. Bytes are those of base64 in the file but for the
/// last.
struct PageBudget {
  std::int64_t full_tokens = 512;                 ///< up to here every weight is kept
  std::int64_t full_bytes = 64000000;             ///< of rows kept whole
  std::int64_t page_bytes = 64000000;             ///< of everything, where rows are sparse
  std::int64_t steps_bytes = 24000000;            ///< of q, k and v of all heads
  std::int64_t few_steps_bytes = 12000000;        ///< of those of a few heads
  std::int64_t gathered_steps_bytes = 200000000;  ///< q, k, v in memory until roles are known
};

/// Gathers rows, sizes of values, and q, k and v while a text runs; writes the page afterwards.
class PageReport : public LookReport {
 public:
  explicit PageReport(std::string path, const PageBudget& budget = {});
  ~PageReport() override;

  void begin(const LookData& look) override;
  std::vector<HeadMapSpec> maps() const override;
  HeadRowVisitor* rows_of(std::int64_t layer) override;
  void attended(const models::AttentionSeen& seen) override;
  void write(const LookData& look) override;

  /// The page as it would be written.
  PageData page(const LookData& look);

 private:
  class Layer;
  bool keeps_full() const;
  void add_rows(const LookData& look, PageData& page);
  Keep choose_keep(PageData& page);
  void add_steps(const LookData& look, PageData& page);

  std::string path_;
  PageBudget budget_;
  const LookData* look_ = nullptr;
  std::int64_t tokens_ = 0;
  bool gathers_steps_ = false;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace polyhead::cli
