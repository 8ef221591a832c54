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
  bool bos_each = false;  ///< llama2: before each turn of the user
  std::string bos;        ///< where the template spells it
};

/// Branches are followed side by side, as if each were taken or left out where its condition is not
/// known, and loops twice: what is written must be turns in every way through the template.
FormsRead read_forms(const std::vector<TemplatePiece>& pieces, const ChatFormat& chat);

}  // namespace polyhead::inline v0::models
