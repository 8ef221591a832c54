// Runs a fuzz target without libFuzzer: its corpus, then mutations of it, for a while. Blind, where
// libFuzzer follows the branches taken, but any compiler builds it, so every test run has it.
//   mutate_NAME [CORPUS]     environment: POLYHEAD_FUZZ_SECONDS (default 5), POLYHEAD_FUZZ_SEED
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// What a target may have to say when all inputs were run; it aborts where they were not about
/// much.
extern "C" __attribute__((weak)) void polyhead_fuzz_ended();

// A header of a few KiB that makes the program ask for more than this has been believed.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024"; }

namespace {

using Bytes = std::vector<std::uint8_t>;
using polyhead::test::Random;

constexpr std::size_t kMostBytes = 1 << 16;  // of an input; small ones run more often
constexpr unsigned kMostSeconds = 60;        // an input that takes longer is a failure

Bytes current;
std::string name;

/// Keeps the input that broke something.
void save_current() {
  const std::string path = name + ".crash";
  if (std::FILE* file = std::fopen(path.c_str(), "wb"); file != nullptr) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s\n", path.c_str());
  }
}

void ended(int signal) {
  std::fprintf(stderr, "%s: %s\n", name.c_str(),
               signal == SIGALRM ? "an input takes too long" : "aborted");
  save_current();
  ::_exit(1);
}

/// The driver's own heap is what a copy into an exact one is for: a read past the end is seen.
void run_current() {
  const Bytes exact(current);
  ::alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ::alarm(0);
}

std::vector<Bytes> read_corpus(const char* folder) {
  std::vector<Bytes> corpus;
  if (folder == nullptr || !std::filesystem::is_directory(folder)) return corpus;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry);
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

std::size_t place(Random& random, std::size_t size) {
  return static_cast<std::size_t>(random.below(static_cast<std::int64_t>(size)));
}

/// Numbers that sizes, counts and offsets are most often wrong at.
std::uint64_t telling_number(Random& random) {
  const std::uint64_t power = std::uint64_t{1} << random.below(64);
  switch (random.below(4)) {
    case 0:
      return power;
    case 1:
      return power - 1;
    case 2:
      return std::uint64_t{0} - power;
    default:
      return static_cast<std::uint64_t>(random.below(300));
  }
}

/// What to begin with where there is no corpus. Zeros, which also come after every input's end,
/// would say little.
Bytes random_bytes(Random& random) {
  Bytes bytes(place(random, 512) + 1);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  return bytes;
}

void mutate(Random& random, const std::vector<Bytes>& corpus) {
  if (current.empty()) current.push_back(0);
  const std::size_t at = place(random, current.size());
  const std::size_t count = std::min<std::size_t>(
      current.size() - at, 1 + place(random, std::size_t{1} << random.below(9)));
  const auto here = current.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.below(8)) {
    case 0:
      current[at] ^= static_cast<std::uint8_t>(1 << random.below(8));
      break;
    case 1:
      current[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2: {
      const std::uint64_t number = telling_number(random);
      std::memcpy(&current[at], &number,
                  std::min<std::size_t>(current.size() - at, std::size_t{1} << random.below(4)));
      break;
    }
    case 3:
      current.erase(here, here + static_cast<std::ptrdiff_t>(count));
      break;
    case 4: {
      const Bytes piece(here, here + static_cast<std::ptrdiff_t>(count));
      const auto to = static_cast<std::ptrdiff_t>(place(random, current.size()));
      current.insert(current.begin() + to, piece.begin(), piece.end());
      break;
    }
    case 5: {  // digits stand for numbers in text
      const std::string digits = std::to_string(telling_number(random));
      current.insert(here, digits.begin(), digits.end());
      break;
    }
    case 6:
      current.resize(at);
      break;
    default: {
      if (corpus.empty()) break;
      const Bytes& other = corpus[place(random, corpus.size())];
      if (other.empty()) break;
      const auto from = static_cast<std::ptrdiff_t>(place(random, other.size()));
      current.resize(at);
      current.insert(current.end(), other.begin() + from, other.end());
    }
  }
  if (current.size() > kMostBytes) current.resize(kMostBytes);
}

const char* environment(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  name = std::filesystem::path(argv[0]).filename().string();
  __sanitizer_set_death_callback(save_current);
  ::signal(SIGALRM, ended);
  ::signal(SIGABRT, ended);
  const double seconds = std::atof(environment("POLYHEAD_FUZZ_SECONDS", "5"));
  Random random(std::strtoull(environment("POLYHEAD_FUZZ_SEED", "1"), nullptr, 10));
  const std::vector<Bytes> corpus = read_corpus(argc > 1 ? argv[1] : nullptr);
  for (const Bytes& seed : corpus) {
    current = seed;
    run_current();
  }
  const auto begin = std::chrono::steady_clock::now();
  long long runs = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
         seconds) {
    current = corpus.empty() ? random_bytes(random) : corpus[place(random, corpus.size())];
    for (std::int64_t i = random.below(6); i >= 0; --i) mutate(random, corpus);
    run_current();
    ++runs;
  }
  if (polyhead_fuzz_ended != nullptr) polyhead_fuzz_ended();
  std::printf("ok: %s, %zu inputs of the corpus, %lld mutations\n", name.c_str(), corpus.size(),
              runs);
  return 0;
}
