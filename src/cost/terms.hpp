// Building terms: the only place where factors are multiplied and parts are added.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {

/// A term beyond 2^128. The searches take it as "does not fit".
class TooLarge : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// value = product of `factors`. Throws TooLarge naming the term.
Term product(std::string id, Unit unit, std::vector<Factor> factors, std::string note = "");

/// value = product of `factors` · sum of `parts`. Throws TooLarge naming the term.
Term sum(std::string id, Unit unit, std::vector<Term> parts, std::string note = "",
         std::vector<Factor> factors = {});

/// The term, said to be of the layers of this group: it has that of the next group beside it.
inline Term of_group(const Layer& layer, Term term) {
  term.layers = layer.name;
  return term;
}

inline Factor constant(Count value) { return {"", value}; }

}  // namespace polyhead::inline v0::cost
