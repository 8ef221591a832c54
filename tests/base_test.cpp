// Element conversions, instruction sets, threads and memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum.hpp"
#include "base/element.hpp"
#include "base/large_pages.hpp"
#include "base/memory.hpp"
#include "base/share_out.hpp"
#include "base/float_environment.hpp"
#include "polyhead/error.h"
#include "polyhead/executor.h"
#include "polyhead/isa.h"
#include "polyhead/types.h"
#include "support/failing_allocation.h"

namespace polyhead::test {
namespace {

TEST(Element, EveryFloat16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float32(half);
    const float16 back = to_float16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float32(back))) << bits;
    } else {
      EXPECT_EQ(back.bits, half.bits);
    }
  }
}

TEST(Element, Float16ValuesAreTheFormatsOwn) {
  // sign, exponent, significand by the definition of binary16.
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10), significand = static_cast<int>(bits & 0x3ff);
    const double expected = exponent == 0 ? std::ldexp(significand, -24)
                                          : std::ldexp(1024 + significand, exponent - 25);
    EXPECT_EQ(to_float32(float16{static_cast<std::uint16_t>(bits)}), expected) << bits;
    EXPECT_EQ(to_float32(float16{static_cast<std::uint16_t>(bits | 0x8000)}), -expected) << bits;
  }
  EXPECT_EQ(to_float32(float16{0x7c00}), std::numeric_limits<float>::infinity());
}

// Between two neighbours the nearer is taken, and of two equally near ones the one with an even
// last bit.
template <class Half, class Convert>
void expect_nearest_even(std::uint32_t last_finite, Convert convert) {
  for (std::uint32_t bits = 0; bits < last_finite; ++bits) {
    const float low = to_float32(Half{static_cast<std::uint16_t>(bits)});
    const float high = to_float32(Half{static_cast<std::uint16_t>(bits + 1)});
    const double middle = (static_cast<double>(low) + high) / 2;
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    ASSERT_EQ(convert(tie).bits, even) << bits;
    ASSERT_EQ(convert(std::nextafter(tie, low)).bits, bits);
    ASSERT_EQ(convert(std::nextafter(tie, high)).bits, bits + 1);
    ASSERT_EQ(convert(-tie).bits, even | 0x8000u) << bits;
  }
}

TEST(Element, RoundsToNearestEven) {
  expect_nearest_even<float16>(0x7bff, [](float x) { return to_float16(x); });
  expect_nearest_even<bfloat16>(0x7f7f, [](float x) { return to_bfloat16(x); });
}

TEST(Element, OverflowBecomesInfinityAndNanStays) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);  // just under the midpoint of 65504 and 65536
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_float16(infinity).bits, 0x7c00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(infinity).bits, 0x7f80);
  for (std::uint32_t payload : {1u, 0x1fffu, 0x2000u, 0x7fffffu}) {
    const float nan = std::bit_cast<float>(0x7f800000u | payload);
    EXPECT_TRUE(std::isnan(to_float32(to_float16(nan)))) << payload;
    EXPECT_TRUE(std::isnan(to_float32(to_bfloat16(nan)))) << payload;
  }
}

TEST(Element, NamesAndSizes) {
  EXPECT_STREQ(element_name(ElementType::bfloat16), "bfloat16");
  EXPECT_STREQ(element_name(ElementType::bit), "bit");
  EXPECT_EQ(element_bytes(ElementType::float16), 2);
  EXPECT_EQ(element_bytes(ElementType::int64), 8);
}

TEST(IsaNames, RoundTripAndRefusal) {
  for (Isa isa :
       {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16, Isa::automatic}) {
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  }
  try {
    isa_from_name("avx1024");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("\"avx1024\""), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("portable, avx2, avx512, avx512_bf16, amx_bf16"),
              std::string::npos);
  }
}

class IsaEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("POLYHEAD_ISA")) before_ = value;
  }
  void TearDown() override {
    if (before_.empty())
      unsetenv("POLYHEAD_ISA");
    else
      setenv("POLYHEAD_ISA", before_.c_str(), 1);
  }
  std::string before_;
};

TEST_F(IsaEnvironment, ChoosesWhereTheCallDoesNot) {
  const std::vector<Isa> here = available_isas();
  ASSERT_FALSE(here.empty());
  EXPECT_EQ(here.front(), Isa::portable);
  unsetenv("POLYHEAD_ISA");
  EXPECT_EQ(resolve_isa(Isa::automatic), here.back());
  for (Isa isa : here) {
    setenv("POLYHEAD_ISA", isa_name(isa), 1);
    EXPECT_EQ(resolve_isa(Isa::automatic), isa);
    EXPECT_EQ(resolve_isa(Isa::portable), Isa::portable);
  }
  setenv("POLYHEAD_ISA", "mmx", 1);
  try {
    resolve_isa(Isa::automatic);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("POLYHEAD_ISA: \"mmx\""), 0u) << error.what();
  }
  try {
    resolve_isa(static_cast<Isa>(77));
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("isa: 77 is no instruction set"), 0u) << error.what();
  }
  for (Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16}) {
    if (std::find(here.begin(), here.end(), isa) == here.end()) {
      EXPECT_THROW(resolve_isa(isa), InvalidArgument);
    }
  }
}

TEST(Memory, AlignedAndMovable) {
  base::AlignedBuffer<float> buffer(3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  buffer[2] = 5.0f;
  base::AlignedBuffer<float> other = std::move(buffer);
  EXPECT_EQ(other[2], 5.0f);
  EXPECT_EQ(other.bytes(), 12u);
  EXPECT_EQ(buffer.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the test
  EXPECT_EQ(base::AlignedBuffer<float>().size(), 0u);
}

TEST(Memory, ArraysOfALargePageBeginWithOne) {
  const auto place = [](const auto& buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer.data());
  };
  const auto small = base::in_large_pages<float>(1000);
  EXPECT_EQ(place(small) % 64, 0u);
  auto large = base::in_large_pages<float>(base::kLargePage / 4 + 1);
  EXPECT_EQ(place(large) % base::kLargePage, 0u);
  EXPECT_EQ(large.size(), base::kLargePage / 4 + 1);
  large = base::in_large_pages<float>(3);  // each is freed with the alignment it was made with
  EXPECT_EQ(large.size(), 3u);
}

TEST(Memory, LargePagesHandOutPiecesThatOutliveThem) {
  const std::size_t sizes[] = {0, 1, 64, 65, 4096, base::kLargePage, 100, 3 * base::kLargePage + 1};
  for (const std::size_t room : {std::size_t{0}, base::kLargePage, 12 * base::kLargePage}) {
    std::vector<std::shared_ptr<std::byte>> pieces;
    {
      base::LargePages pages(room);
      for (int round = 0; round < 5; ++round) {
        for (const std::size_t bytes : sizes) {
          pieces.push_back(pages.take(bytes));
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back().get()) % 64, 0u);
          std::fill_n(pieces.back().get(), bytes, static_cast<std::byte>(pieces.size()));
        }
      }
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::byte* const begin = pieces[i].get();
      const std::byte* const end = begin + sizes[i % std::size(sizes)];
      EXPECT_TRUE(
          std::all_of(begin, end, [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }))
          << room << " " << i;
      pieces[i].reset();
    }
  }
}

TEST(Memory, LargePagesLieNextToEachOther) {
  base::LargePages pages(2 * base::kLargePage);
  const auto first = pages.take(100), second = pages.take(1000);
  const auto large = pages.take(2 * base::kLargePage), third = pages.take(64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.get()) % base::kLargePage, 0u);
  EXPECT_EQ(second.get() - first.get(), 128);
  EXPECT_EQ(third.get() - second.get(), 1024);  // what did not fit lies elsewhere
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.get()) % base::kLargePage, 0u);
}

TEST(Memory, LargePagesThatCannotBeHadLeaveTheOthers) {
  base::LargePages pages(192);
  const auto first = pages.take(128);
  largest_allocation = 1000;
  EXPECT_THROW(pages.take(4096), std::bad_alloc);
  largest_allocation = static_cast<std::size_t>(-1);
  const auto second = pages.take(64);
  EXPECT_EQ(second.get() - first.get(), 128);
}

template <class F>
void run(Executor& executor, int count, F& function) {
  executor.run(count,
               {[](void* context, int index) { (*static_cast<F*>(context))(index); }, &function});
}

#if defined(__x86_64__)
float product(float a, float b) {
  const volatile float x = a, y = b;  // multiplied here and now
  return x * y;
}

TEST(FloatEnvironment, MakesSubnormalResultsZeroWhileItemsAreSharedOutAndNotAfter) {
  ASSERT_GT(product(0x1p-100f, 0x1p-40f), 0.0f);
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    std::atomic<int> zeros{0};
    base::share_out(pool, threads, 100, [&](std::int64_t, int) {
      if (product(0x1p-100f, 0x1p-40f) == 0.0f && product(0x1p-100f, 0x1p-26f) > 0.0f) ++zeros;
    });
    EXPECT_EQ(zeros, 100);
    EXPECT_GT(product(0x1p-100f, 0x1p-40f), 0.0f);
  }
  const base::FloatEnvironment outer;
  { const base::FloatEnvironment inner; }
  EXPECT_EQ(product(0x1p-100f, 0x1p-40f), 0.0f);
}
#endif

TEST(Threads, EachTaskRunsOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.concurrency(), threads);
    for (int count : {0, 1, 2, 5, 100}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<std::atomic<int>> times(static_cast<std::size_t>(count));
        auto mark = [&](int index) { ++times[static_cast<std::size_t>(index)]; };
        run(pool, count, mark);
        for (const std::atomic<int>& time : times) ASSERT_EQ(time, 1);
      }
    }
  }
}

/// How many of a run's tasks, one a thread, do not see all the others begin. Only threads at once
/// can meet; a task waits a minute, far beyond what a busy machine delays a thread that is awake.
int tasks_left_alone(ThreadPool& pool, int tasks) {
  std::atomic<int> present{0}, alone{0};
  auto meet = [&](int) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    ++present;
    while (present.load() < tasks) {
      if (std::chrono::steady_clock::now() > deadline) {
        ++alone;
        return;
      }
      std::this_thread::yield();
    }
  };
  run(pool, tasks, meet);
  return alone;
}

TEST(Threads, TasksRunAtOnce) {
  ThreadPool pool(3);
  EXPECT_EQ(tasks_left_alone(pool, 3), 0);
}

TEST(Threads, ARunInsideATaskDoesNotWaitForItself) {
  ThreadPool pool(2), other(2);
  std::atomic<int> total{0};
  auto inner = [&](int) { ++total; };
  auto outer = [&](int index) { run(index % 2 == 0 ? pool : other, 4, inner); };
  run(pool, 6, outer);
  EXPECT_EQ(total, 24);
}

TEST(Threads, SeveralCallersTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  auto add = [&](int) { ++total; };
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) run(pool, 3, add);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 200 * 3);
}

TEST(Threads, WakesAfterASleep) {
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(tasks_left_alone(pool, 2), 0) << "run " << i;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(5));  // far beyond the time workers stay awake
  }
}

// A pool may be for more threads than there is memory for.
TEST(Threads, APoolTakesMemoryForThoseItStarts) {
  ThreadPool pool(ThreadPool::kMost);
  std::atomic<int> total{0};
  auto add = [&](int) { ++total; };
  largest_allocation = std::size_t{1} << 14;
  EXPECT_NO_THROW(run(pool, 2, add));
  largest_allocation = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(total, 2);
}

TEST(Threads, SerialAndRefusal) {
  std::set<std::thread::id> ids;
  auto note = [&](int) { ids.insert(std::this_thread::get_id()); };
  run(Executor::serial(), 5, note);
  EXPECT_EQ(ids, std::set<std::thread::id>{std::this_thread::get_id()});
  EXPECT_EQ(Executor::serial().concurrency(), 1);
  EXPECT_GE(Executor::shared().concurrency(), 1);
  EXPECT_THROW(ThreadPool(0), InvalidArgument);
  EXPECT_THROW(ThreadPool(ThreadPool::kMost + 1), InvalidArgument);
}

TEST(Checksum, IsTheSameForAnyPieces) {
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 7);
  // Files hold it.
  EXPECT_EQ(base::checksum(bytes), 0x6875359abd8ad2a8u);
  EXPECT_EQ(base::checksum({}), 0xe3aabcb97707dffau);
  for (std::size_t step = 1; step < 30; ++step) {
    base::Checksum sum(bytes.size());
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      sum.add({});
      sum.add(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
    }
    EXPECT_EQ(sum.value(), base::checksum(bytes)) << step;
  }
}

}  // namespace
}  // namespace polyhead::test
