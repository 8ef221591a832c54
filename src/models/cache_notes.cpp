#include "models/cache_notes.hpp"

#include "base/refuse.hpp"
#include "cache/saved_bytes.hpp"

namespace polyhead::inline v0::models {
namespace {

//   "PHFRAMES", u64 layers, and of each layer keys and values: each of their lists of numbers as
//   u64 count and float32s
constexpr char kMagic[] = "PHFRAMES";
constexpr std::size_t kMagicBytes = 8, kCountBytes = 8;

/// Calls visit(list) for the lists of a layer's numbers. `Frames` may be const.
template <class Frames, class Visit>
void visit_lists(Frames& frames, const Visit& visit) {
  for (auto* frame : {&frames.keys, &frames.values}) {
    for (auto* list : {&frame->centre, &frame->stretch, &frame->carry, &frame->cost}) visit(*list);
  }
}

void put_count(const cache::Sink& to, std::uint64_t count) { cache::put(to, &count, sizeof count); }

/// Takes notes apart; what is promised must be there before memory is.
class Reader {
 public:
  Reader(const std::string& path, std::span<const std::byte> notes) : path_(path), rest_(notes) {}

  void magic() {
    char found[kMagicBytes];
    if (!cache::take(rest_, found, kMagicBytes) || std::memcmp(found, kMagic, kMagicBytes) != 0)
      base::refuse("frames_of_notes", path_, " has notes that are no frames");
  }

  /// A count of what takes `bytes` each at least.
  std::size_t count(const char* what, std::size_t bytes) {
    std::uint64_t count = 0;
    if (!cache::take(rest_, &count, sizeof count) || count > rest_.size() / bytes) {
      base::refuse("frames_of_notes", path_, " promises ", count, " ", what,
                   " in the notes of its frames, of which ", rest_.size(), " bytes are left");
    }
    return count;
  }

  void numbers(std::vector<float>& to) {
    to.resize(count("numbers", sizeof(float)));
    cache::take(rest_, to.data(), to.size() * sizeof(float));
  }

  void end() const {
    if (!rest_.empty())
      base::refuse("frames_of_notes", path_, " has notes that are ", rest_.size(),
                   " bytes too long");
  }

 private:
  const std::string& path_;
  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> notes_of(std::span<const LayerFrames> frames) {
  std::vector<std::byte> notes;
  if (frames.empty()) return notes;
  const cache::Sink to = cache::at_end_of(notes);
  cache::put(to, kMagic, kMagicBytes);
  put_count(to, frames.size());
  for (const LayerFrames& layer : frames) {
    visit_lists(layer, [&](const std::vector<float>& list) {
      put_count(to, list.size());
      cache::put(to, list.data(), list.size() * sizeof(float));
    });
  }
  return notes;
}

std::vector<LayerFrames> frames_of_notes(const std::string& path,
                                         std::span<const std::byte> notes) {
  if (notes.empty()) return {};
  Reader from(path, notes);
  from.magic();
  constexpr std::size_t kLeast = 8 * kCountBytes;  // a layer of empty lists
  std::vector<LayerFrames> frames(from.count("layers", kLeast));
  for (LayerFrames& layer : frames)
    visit_lists(layer, [&](std::vector<float>& list) { from.numbers(list); });
  from.end();
  return frames;
}

std::int64_t most_note_bytes(const ModelConfig& config) {
  constexpr std::int64_t kLists = 3;  // of a number a dim, beside the square that carries errors
  auto bytes = static_cast<std::int64_t>(kMagicBytes + kCountBytes);
  for (const LayerGeometry& layer : config.layers) {
    for (const std::int64_t dim : {layer.head_dim, layer.value_dim}) {
      bytes += static_cast<std::int64_t>(4 * kCountBytes) +
               static_cast<std::int64_t>(sizeof(float)) * layer.kv_heads * dim * (dim + kLists);
    }
  }
  return bytes;
}

}  // namespace polyhead::inline v0::models
