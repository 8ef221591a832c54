#include "cli/info_cache.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "cli/kv_options.hpp"
#include "cli/said_of_file.hpp"
#include "cli/table.hpp"
#include "models/cache_notes.hpp"
#include "polyhead/cache_file.h"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using Kind = CacheFileInfo::Kind;
using nlohmann::ordered_json;

CacheFileInfo info_of(const std::string& path) {
  return said_of_file(path, [&] { return load_cache_file_info(path); });
}

std::uintmax_t file_bytes(const std::string& path) {
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(path, failed);
  return failed ? 0 : bytes;
}

/// "2 sequences of a paged cache".
std::string what_it_is(const CacheFileInfo& info) {
  const std::string count = grouped(info.count), plural = info.count == 1 ? "" : "s";
  if (info.kind == Kind::sequences) return count + " sequence" + plural + " of a paged cache";
  if (info.kind == Kind::caches) return count + " cache" + plural;
  return count + " sliding cache" + plural;
}

/// Whether its notes are the frames that `generate` saves rows of codes in.
bool in_frames(const std::string& path, const CacheFileInfo& info) try {
  return info.notes_bytes > 0 &&
         !models::frames_of_notes(path, load_notes(path, info.fingerprint)).empty();
} catch (const InvalidArgument&) {
  return false;  // notes of another program
}

std::string held_as(const std::string& path, const CacheFileInfo& info) {
  std::string text = kv_type_name(info.type);
  if (in_frames(path, info)) text += ", keys calibrated by channel (--kv-keys channel)";
  if (info.keys_by_channel) text += ", keys scaled by channel";
  if (info.values_in_keys) text += ", values in the keys";
  return text;
}

std::string sizes_of(const CacheFileInfo& info) {
  std::string text;
  if (info.kind == Kind::sequences)
    text = grouped(info.layers) + (info.layers == 1 ? " layer, " : " layers, ");
  else if (info.batch != 1)
    text = "batch " + grouped(info.batch) + ", ";
  return text + grouped(info.kv_heads) + (info.kv_heads == 1 ? " KV head" : " KV heads") +
         ", head_dim " + grouped(info.head_dim) + ", value_dim " + grouped(info.value_dim);
}

/// How many tokens, and of which one of several.
std::string tokens_of(const CacheFileInfo& info) {
  std::string text = grouped(info.tokens);
  if (info.batch > 1) text += " of the longest of the batch";
  if (info.count > 1) text += info.kind == Kind::sequences ? ", the first" : ", the first cache";
  return text;
}

}  // namespace

bool is_cache_file(const std::string& path) {
  constexpr std::string_view kBegin = "PHKV";
  char begin[kBegin.size()] = {};
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return false;
  std::ifstream file(path, std::ios::binary);
  return file.read(begin, sizeof begin) && std::string_view(begin, sizeof begin) == kBegin;
}

void print_cache_file(const Console& console, const std::string& path) {
  const CacheFileInfo info = info_of(path);
  console.out << console.styled(Style::heading, printable(path)) << '\n';
  Table facts({Table::Align::left, Table::Align::left});
  facts.row({"holds", what_it_is(info)});
  if (info.count > 0) {
    facts.row({"tokens", tokens_of(info)});
    facts.row({"sizes", sizes_of(info)});
    facts.row({"as", held_as(path, info)});
  }
  if (info.kind == Kind::sliding_caches && info.count > 0) {
    facts.row({"window", grouped(info.window) + ", first tokens " + grouped(info.first_tokens) +
                             ", chunk " + grouped(info.chunk)});
  }
  const CacheFingerprint& print = info.fingerprint;
  facts.row({"file", bytes_text(file_bytes(path))});
  facts.row(
      {"of model",
       fingerprint_text(print.model) + ", weights " + fingerprint_text(print.weights) + ", RoPE " +
           fingerprint_text(print.rope) +
           (print.tokens != 0 ? ", tokens " + fingerprint_text(print.tokens) : std::string())});
  facts.print(console);
}

ordered_json cache_file_json(const std::string& path) {
  const CacheFileInfo info = info_of(path);
  constexpr const char* kKinds[] = {"caches", "sliding_caches", "sequences"};
  ordered_json json{{"path", path},
                    {"kind", kKinds[static_cast<std::size_t>(info.kind)]},
                    {"count", info.count},
                    {"bytes", file_bytes(path)}};
  if (info.count > 0) {
    json.update({{"tokens", info.tokens},
                 {"type", element_name(info.type)},
                 {"layers", info.layers},
                 {"batch", info.batch},
                 {"kv_heads", info.kv_heads},
                 {"head_dim", info.head_dim},
                 {"value_dim", info.value_dim},
                 {"values_in_keys", info.values_in_keys},
                 {"keys_by_channel", info.keys_by_channel}});
    if (info.kind == Kind::sliding_caches) {
      json.update(
          {{"window", info.window}, {"first_tokens", info.first_tokens}, {"chunk", info.chunk}});
    }
  }
  if (info.kind == Kind::sequences)
    json.update({{"notes_bytes", info.notes_bytes}, {"in_frames", in_frames(path, info)}});
  const CacheFingerprint& print = info.fingerprint;
  json["fingerprint"] = {{"model", fingerprint_text(print.model)},
                         {"weights", fingerprint_text(print.weights)},
                         {"rope", fingerprint_text(print.rope)},
                         {"tokens", fingerprint_text(print.tokens)}};
  return json;
}

}  // namespace polyhead::cli
