// Instruction sets: which one runs, and how to force one.
#pragma once

#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// The instruction sets the CPU kernels are compiled for, from least to most capable. `automatic`
/// takes the most capable one this processor has, or the one the environment variable POLYHEAD_ISA
/// names ("portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"). A forced set that the processor
/// lacks is refused. avx512_bf16 needs VNNI and VBMI too: Zen 4, Sapphire Rapids and what came
/// later have all three (Cooper Lake lacks VBMI and takes avx512). amx_bf16 is avx512_bf16 with the
/// matrix products of AMX for bfloat16; asking whether it is there also asks Linux for its
/// registers, on behalf of the process (whose alternate signal stacks then have to hold them, see
/// sigaltstack(2)).
enum class Isa { automatic, portable, avx2, avx512, avx512_bf16, amx_bf16 };

/// "automatic", "portable", "avx2", ...; "unknown" of what is none of them.
const char* isa_name(Isa isa);

/// The instruction set of that name; throws InvalidArgument listing the known names.
Isa isa_from_name(std::string_view name);

/// Those this processor can run and this build contains, least capable first.
std::vector<Isa> available_isas();

/// What `isa` stands for on this machine: never `automatic`. Throws InvalidArgument if it cannot
/// run here.
Isa resolve_isa(Isa isa);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
