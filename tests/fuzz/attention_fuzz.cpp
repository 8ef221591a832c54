// attention() on any arguments: refused by all instruction sets alike with nothing written, or
// right on all of them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "base/element.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/executor.h"
#include "tests/fuzz/attention_case.hpp"

namespace polyhead::fuzz {
namespace {

using kernels::AttendCall;
using kernels::Operand;

constexpr int kPoison = 0x5a;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "attention_fuzz: %s\n", what.c_str());
  std::abort();
}

/// Runs the call; what it was refused with, or "".
std::string run(const AttentionArguments& arguments, const Options& options) {
  try {
    attention(arguments, options);
    return "";
  } catch (const InvalidArgument& refusal) {
    return refusal.what();
  }
}

void expect_untouched(const std::vector<Buffer*>& outputs) {
  for (const Buffer* output : outputs) {
    for (std::size_t i = 0; i < output->size; ++i) {
      if (output->bytes[i] != std::byte{kPoison}) fail("a refused call wrote to an output");
    }
  }
}

std::vector<std::byte> snapshot(const std::vector<Buffer*>& outputs) {
  std::vector<std::byte> all;
  for (const Buffer* output : outputs)
    all.insert(all.end(), output->bytes.get(), output->bytes.get() + output->size);
  return all;
}

/// Whether instruction sets that can multiply codes as integers do.
bool takes_integers(const AttendCall& call) {
  return call.q.type == ElementType::bfloat16 && base::is_scaled(call.k.type);
}

/// How far float32 results may lie from double ones, for inputs within [-2, 2]
/// (attention_case.hpp).
struct Tolerance {
  double score, out_relative, lse, entropy;  // codes times their scales lie within [-2, 2] too

  explicit Tolerance(const AttendCall& call, bool sixteen_bit) {
    const double eps = 0x1p-23;
    const double dims = static_cast<double>(call.head_dim), keys = static_cast<double>(call.kv_len);
    // A chain of head_dim products of at most 4, then bias, ALiBi (slope * distance <= 0.2 * 400)
    // and soft-cap.
    score = eps * ((dims + 4.0) * std::abs(call.score.scale) * 4.0 * dims + 100.0 +
                   call.score.soft_cap * 4.0);
    // The integer path has 15 bits of the largest of q, and of weights times scales.
    if (takes_integers(call)) score += 0x1p-15 * std::abs(call.score.scale) * 4.0 * dims;
    // exp(s) moves by s's error twice (numerator, denominator); sums over keys; P rounded to
    // bfloat16 where it is.
    out_relative = 2.0 * score + (keys + 32.0) * eps + (sixteen_bit ? 0x1p-7 : 0.0);
    lse = 2.0 * score + (keys + 32.0) * eps;
    entropy = 4.0 * lse * (std::log(keys + 2.0) + 4.0);
  }
};

void expect_near(const char* what, const char* isa, double expected, double found,
                 double tolerance) {
  const bool fine = std::isfinite(expected) ? std::abs(found - expected) <= tolerance
                    : std::isinf(expected)  ? found == expected
                                            : !std::isfinite(found);
  if (!fine) {
    fail(std::string(what) + " on " + isa + ": expected " + std::to_string(expected) + ", found " +
         std::to_string(found) + ", tolerance " + std::to_string(tolerance));
  }
}

/// One line on a call, for whoever reads a crash.
std::string describe(const AttendCall& c) {
  std::string text = "batch " + std::to_string(c.batch) + " q_len " + std::to_string(c.q_len) +
                     " kv_len " + std::to_string(c.kv_len) + " heads " + std::to_string(c.q_heads) +
                     "/" + std::to_string(c.kv_heads) + " dims " + std::to_string(c.head_dim) +
                     "/" + std::to_string(c.value_dim) + " types " + element_name(c.q.type) + " " +
                     element_name(c.k.type) + " " + element_name(c.v.type) + " -> " +
                     element_name(c.out.type) + " scale " + std::to_string(c.score.scale);
  const auto note = [&](bool given, const char* what) {
    text += given ? std::string(", ") + what : "";
  };
  note(c.q_offsets.given(), "ragged");
  note(c.pages.data != nullptr, "pages");
  note(c.kv_lengths.given(), "kv_lengths");
  note(c.q_lengths.given(), "q_lengths");
  note(c.q_start.given(), "q_start");
  note(c.mask.causal, "causal");
  note(c.mask.left >= 0 || c.mask.right >= 0, "window");
  note(c.mask.prefix_length > 0 || c.mask.prefix_lengths.given(), "prefix");
  note(c.mask.q_documents.data != nullptr, "documents");
  for (const kernels::BooleanTable& table : c.mask.booleans()) {
    note(true, element_name(table.type));
    note(table.hides, "hidden");
  }
  note(c.score.soft_cap != 0.0f, "soft_cap");
  note(c.score.bias.data != nullptr, "bias");
  note(c.score.alibi, "alibi");
  note(c.score.sink != nullptr, "sink");
  note(c.score.dropout != 0.0f, "dropout");
  return text;
}

/// Half a unit in the last place of `type` at a magnitude: how far a value is from the nearest one
/// of the type.
double rounding(ElementType type, double magnitude) {
  const int digits = type == ElementType::float16 ? 11 : type == ElementType::bfloat16 ? 8 : 24;
  const int least = type == ElementType::float16 ? -14 : -126;  // subnormal numbers are below
  const int exponent = magnitude > 0.0 ? std::max(std::ilogb(magnitude), least) : least;
  return std::ldexp(1.0, exponent - digits);
}

double load_float(const std::byte* at, ElementType type) {
  switch (type) {
    case ElementType::float16:
      return to_float32(*reinterpret_cast<const float16*>(at));
    case ElementType::bfloat16:
      return to_float32(*reinterpret_cast<const bfloat16*>(at));
    default:
      return *reinterpret_cast<const float*>(at);
  }
}

/// What a run without libFuzzer ends with: whether it was about something.
struct Tally {
  long long calls = 0, seeing = 0, held = 0;  ///< seeing: some query sees a key; held: in a cache
};
Tally tally;

/// Every number of the call against the reference's.
void compare(const AttendCall& call, const kernels::reference::Result& expected,
             std::int64_t rows_a_batch, const char* isa) {
  const bool sixteen_bit = call.q.type != ElementType::float32 ||
                           call.k.type != ElementType::float32 ||
                           call.v.type != ElementType::float32;
  const Tolerance allowed(call, sixteen_bit);
  const double dropout = 1.0 / (1.0 - call.score.dropout);
  const bool ragged = call.q_offsets.given();
  const std::int64_t batches = ragged ? 1 : call.batch;
  std::size_t row = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t i = 0; i < rows_a_batch; ++i) {
      for (std::int64_t h = 0; h < call.q_heads; ++h, ++row) {
        const auto at = [&](const Operand& o) {
          return o.data + b * o.batch + i * o.token + h * o.head;
        };
        for (std::int64_t d = 0; d < call.value_dim; ++d) {
          const double want = expected.out[row * call.value_dim + d];
          // There a NaN reaches what weighs more than 0, and dropped weights do not.
          if (std::isnan(want) && takes_integers(call)) continue;
          const double before = 2.0 * dropout * allowed.out_relative;  // it is rounded to its type
          expect_near("out", isa, want, load_float(at(call.out) + d * call.out.dim, call.out.type),
                      before + rounding(call.out.type, std::abs(want) + before));
        }
        const auto row_value = [&](const Operand& o, const std::vector<double>& want,
                                   const char* what, double bound) {
          if (o.data)
            expect_near(what, isa, want[row], load_float(at(o), ElementType::float32), bound);
        };
        row_value(call.lse, expected.lse, "lse", allowed.lse);
        row_value(call.max_weight, expected.max_weight, "max_weight", allowed.lse);
        row_value(call.entropy, expected.entropy, "entropy", allowed.entropy);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace polyhead;
  using namespace polyhead::fuzz;
  static ThreadPool pool(3);
  Case fuzzed(data, size);
  const AttentionArguments& arguments = fuzzed.arguments();
  const bool verbose = std::getenv("POLYHEAD_FUZZ_VERBOSE") != nullptr;
  kernels::reference::Result expected;
  kernels::AttendCall call;
  bool have_reference = false;
  std::string first_refusal;
  ++tally.calls;
  for (const Isa isa : available_isas()) {
    std::vector<Buffer*> outputs = fuzzed.poison(kPoison);
    const std::string refusal = run(arguments, {.isa = isa, .executor = &Executor::serial()});
    if (isa == available_isas().front()) first_refusal = refusal;
    if (refusal != first_refusal)
      fail("instruction sets refuse differently: '" + first_refusal + "', '" + refusal + "'");
    if (!refusal.empty()) {
      expect_untouched(outputs);
      continue;
    }
    const bool ragged = arguments.q_offsets.given();
    const std::int64_t rows = arguments.q.layout.extents[ragged ? 0 : 1];
    if (!have_reference) {
      call = door::resolve(arguments);
      expected = kernels::reference::attend(call, false, ragged ? rows : 0);
      have_reference = true;
      const bool sees =
          std::ranges::any_of(expected.lse, [](double lse) { return !std::isinf(lse); });
      tally.seeing += sees;
      tally.held += sees && arguments.kv.given();
      if (verbose) std::fprintf(stderr, "%s\n", describe(call).c_str());
    }
    // Tokens past the last sequence of a ragged batch belong to none, and are left alone.
    compare(call, expected, ragged ? call.q_offsets[call.batch] : rows, isa_name(isa));
    const std::vector<std::byte> serial = snapshot(outputs);
    fuzzed.poison(kPoison + 1);
    run(arguments, {.isa = isa, .executor = &pool});
    fuzzed.poison(kPoison);
    run(arguments, {.isa = isa, .executor = &pool});
    if (snapshot(outputs) != serial) fail("threads changed bits");
  }
  return 0;
}

/// The driver's last word: blind mutations must not spend their time on calls that have nothing to
/// compute.
extern "C" void polyhead_fuzz_ended() {
  using namespace polyhead::fuzz;
  const std::string share = std::to_string(tally.seeing) + " of " + std::to_string(tally.calls);
  std::printf("in %s calls some query sees a key, in %lld of these what a cache holds\n",
              share.c_str(), tally.held);
  constexpr long long kEnough = 500;  // to judge a share by
  if (tally.calls < kEnough) return;
  if (2 * tally.seeing < tally.calls)
    fail("only in " + share + " calls some query sees a key, expected at least half");
  if (8 * tally.held < tally.seeing)
    fail("only " + std::to_string(tally.held) + " calls read a cache, expected an eighth");
}
