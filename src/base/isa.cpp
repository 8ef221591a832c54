#include "polyhead/isa.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "base/joined.hpp"
#include "base/processor.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

struct NamedIsa {
  Isa isa;
  const char* name;
};

// Least capable first.
constexpr NamedIsa kIsas[] = {{Isa::portable, "portable"},
                              {Isa::avx2, "avx2"},
                              {Isa::avx512, "avx512"},
                              {Isa::avx512_bf16, "avx512_bf16"},
                              {Isa::amx_bf16, "amx_bf16"}};

std::string known_names() { return base::joined(kIsas, ", ", &NamedIsa::name); }

Isa most_capable() {
  Isa best = Isa::portable;
  for (const NamedIsa& known : kIsas) {
    if (base::processor_runs(known.isa)) best = known.isa;
  }
  return best;
}

bool is_known(Isa isa) {
  return std::any_of(std::begin(kIsas), std::end(kIsas),
                     [&](const NamedIsa& known) { return known.isa == isa; });
}

Isa require_runnable(Isa isa, const char* asked_by) {
  if (!is_known(isa)) {
    base::refuse(asked_by, static_cast<int>(isa), " is no instruction set; known are automatic, ",
                 known_names());
  }
  if (!base::processor_runs(isa)) {
    base::refuse(asked_by, "this processor cannot run \"", isa_name(isa), "\"; it can run ",
                 base::joined(available_isas(), ", ", isa_name));
  }
  return isa;
}

Isa named(const char* asked_by, std::string_view name) {
  if (name == "automatic") return Isa::automatic;
  for (const NamedIsa& known : kIsas) {
    if (name == known.name) return known.isa;
  }
  base::refuse(asked_by, "\"", name, "\" is no instruction set; known are automatic, ",
               known_names());
}

}  // namespace

const char* isa_name(Isa isa) {
  for (const NamedIsa& known : kIsas) {
    if (known.isa == isa) return known.name;
  }
  return isa == Isa::automatic ? "automatic" : "unknown";
}

Isa isa_from_name(std::string_view name) { return named("isa", name); }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const NamedIsa& known : kIsas) {
    if (base::processor_runs(known.isa)) isas.push_back(known.isa);
  }
  return isas;
}

Isa resolve_isa(Isa isa) {
  if (isa != Isa::automatic) return require_runnable(isa, "isa");
  constexpr const char* kVariable = "POLYHEAD_ISA";
  const char* name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return most_capable();
  const Isa wanted = named(kVariable, name);
  return wanted == Isa::automatic ? most_capable() : require_runnable(wanted, kVariable);
}

}  // namespace polyhead::inline v0
