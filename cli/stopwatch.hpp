// How long something takes.
#pragma once

#include <chrono>

namespace polyhead::cli {

class Stopwatch {
 public:
  /// Since it was made, or since the last lap.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  double lap() {
    const Clock::time_point before = begin_;
    begin_ = Clock::now();
    return std::chrono::duration<double>(begin_ - before).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

template <class Call>
double seconds_of(const Call& call) {
  const Stopwatch watch;
  call();
  return watch.seconds();
}

}  // namespace polyhead::cli
