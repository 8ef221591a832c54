#include "polyhead/version.h"

namespace polyhead::inline v0 {

const char* version() { return POLYHEAD_VERSION; }

}  // namespace polyhead::inline v0
