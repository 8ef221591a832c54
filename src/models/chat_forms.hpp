// Whether what a chat template writes is turns of its format, character by character.
#pragma once

#include <string>
#include <vector>

#include "models/chat.hpp"
#include "models/template_pieces.hpp"

namespace polyhead::inline v0::models {

struct FormsRead {
  std::string not_known;  ///< what no turn of the format has ("writes 'x' where ..."), the first
  /// How often what messages say is written stripped, and how often as it is; of the former, how
  /// often a system message.
  int stripped = 0, as_is = 0, system_stripped = 0;
  bool begins_with_bos = false;
  std::string bos;  ///< where the template spells it
};

/// Branches are followed side by side, as if each were taken or left out: what is written must be
/// what some way through the template leads to.
FormsRead read_forms(const std::vector<TemplatePiece>& pieces, const ChatFormat& chat);

/// "set NAME = VALUE", "for NAME in ...": NAME, or nothing.
std::string_view bound_name(const TemplatePiece& piece);
bool is_set(const TemplatePiece& piece);

}  // namespace polyhead::inline v0::models
