// Where symbolic links lead: a file that is renamed onto a link would replace the link.
#pragma once

#include <string>
#include <system_error>

namespace polyhead::inline v0::base {

/// The path that the links at `path`, if it is one, lead to; nothing need be there. Sets `error`
/// where a link cannot be read or there are too many.
std::string link_target(const std::string& path, std::error_code& error);

}  // namespace polyhead::inline v0::base
