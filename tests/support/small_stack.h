// Threads with as little stack as some systems give them.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <functional>

namespace polyhead::test {

inline constexpr std::size_t kStack = std::size_t{128} << 10;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // frames are larger
#else
inline constexpr bool kSanitized = false;
#endif

/// Runs f on a thread of kStack bytes, which ends the program where they do not do.
inline void on_small_stack(const std::function<void()>& f) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
  pthread_t thread{};
  const auto run = [](void* of) -> void* {
    (*static_cast<const std::function<void()>*>(of))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&f)), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

}  // namespace polyhead::test
