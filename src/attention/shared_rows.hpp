// Keys that several sequences begin with, computed once: their rows become those of one sequence,
// and go back to their own sequences as partial results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/turns.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {

/// The shared splits of a turn for one KV head, as a call of a single sequence that sees all of
/// its keys. Valid while `memory`, which takes the rows of q and what ALiBi asks of them, is.
class SharedRows {
 public:
  SharedRows(const kernels::AttendCall& call, const Turns& turns, const Turn& turn,
             std::int64_t kv_head, std::byte* memory);

  /// Splits [first, end) of all rows into `partial`.
  void attend(const kernels::cpu::AttendKernel& kernel, std::int64_t first, std::int64_t end,
              std::byte* scratch, std::byte* partial) const;

  /// Of memory, for `rows` rows.
  static std::int64_t bytes(const kernels::AttendCall& call, std::int64_t rows);

 private:
  void place_alibi(const kernels::AttendCall& call, const Turns& turns, const Turn& turn,
                   std::int64_t kv_head, std::byte* memory);

  kernels::AttendCall call_;
};

/// Rows of a turn, of all its sequences or of those before one.
std::int64_t rows_of(const kernels::AttendCall& call, const Turns& turns, const Turn& turn,
                     std::int64_t members);

/// Rows of one kernel's partial.
struct PartialRows {
  const kernels::cpu::AttendKernel* kernel;
  std::byte* partial;
};

/// Rows [first, first + rows) of `from` become all rows of `to`.
void copy_rows(const kernels::AttendCall& call, const PartialRows& from, std::int64_t first,
               const PartialRows& to, std::int64_t rows);

}  // namespace polyhead::inline v0
