// The frames of a cache's codes as notes beside its file (cache_file.h): rows can be read with no
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/config.hpp"
#include "polyhead/code_frame.h"

namespace polyhead::inline v0::models {

/// None of no frames.
std::vector<std::byte> notes_of(std::span<const LayerFrames> frames);

/// What such notes say, one a layer; empty of no notes. Throws InvalidArgument, naming `path`, for
/// notes of another kind, and some that are cut short or too long.
std::vector<LayerFrames> frames_of_notes(const std::string& path, std::span<const std::byte> notes);

/// Bytes that the notes of a model's cache take, at most.
std::int64_t most_note_bytes(const ModelConfig& config);

}  // namespace polyhead::inline v0::models
