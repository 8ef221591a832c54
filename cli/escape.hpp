// What stands inside the markup of a page or a picture and must not be taken for it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace polyhead::cli {

/// JSON that may stand in a script element: no "<", so no "</script" or "<!--" either. Text that is
/// not UTF-8 has its bad bytes replaced.
std::string json_for_script(const nlohmann::ordered_json& value);

/// Text between tags of HTML or XML; without control characters, which XML does not have, and with
/// U+FFFD in place of bytes that are no UTF-8, at which a reader of XML stops.
std::string text_for_markup(std::string_view text);

}  // namespace polyhead::cli
