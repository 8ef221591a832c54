#include "models/tokenizers/end_of_turn.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/tokenizers/algorithm.hpp"

namespace polyhead::inline v0::models {

void add_end(TokenizerSpec& spec, std::int32_t id) {
  std::vector<std::int32_t>& ends = spec.end_of_turn;
  if (id >= 0 && id != spec.eos && std::find(ends.begin(), ends.end(), id) == ends.end())
    ends.push_back(id);
}

void add_known_ends(TokenizerSpec& spec) {
  constexpr std::array<std::string_view, 7> kEnds{"<|im_end|>",     "<end_of_turn>", "<|eot_id|>",
                                                  "<|eom_id|>",     "<|endoftext|>", "<eos>",
                                                  "<|end_of_text|>"};
  for (std::size_t i = 0; i < spec.kinds.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (spec.kinds[i] != TokenKind::control) continue;
    if (std::find(kEnds.begin(), kEnds.end(), spec.pieces[i]) != kEnds.end()) add_end(spec, id);
  }
}

}  // namespace polyhead::inline v0::models
