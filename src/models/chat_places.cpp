#include "models/chat_places.hpp"

#include <algorithm>
#include <initializer_list>

#include "models/template_pieces.hpp"

namespace polyhead::inline v0::models {
namespace {

/// Each of `turns`, with R for each role.
std::vector<std::string> with_roles(std::initializer_list<const char*> turns,
                                    std::initializer_list<const char*> roles) {
  std::vector<std::string> all;
  for (const char* turn : turns) {
    for (const char* role : roles) all.push_back(replaced(turn, "R", role));
  }
  return all;
}

}  // namespace

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

Texts turns_of(const ChatFormat& chat) {
  switch (chat.format) {
    case ChatTemplate::chatml: {
      auto turns = with_roles({"<|im_start|>R\n\x02<|im_end|>\n",
                               "<|im_start|>R\n<think>\n\x02\n</think>\n\n\x02<|im_end|>\n"},
                              {"\x01", "system", "user", "assistant"});
      turns.insert(turns.end(),
                   {"<|im_start|>assistant\n\x0f", "<|im_start|>assistant\n<think>\n\x0f"});
      return {turns};
    }
    case ChatTemplate::gemma: {
      const auto roles = {"\x01", "user", "model", "assistant"};
      auto turns = with_roles({"<start_of_turn>R\n\x02<end_of_turn>\n"}, roles);
      turns.emplace_back("<start_of_turn>model\n\x0f");
      return {turns, with_roles({"<start_of_turn>R\n\x0e\x02<end_of_turn>\n",
                                 "<start_of_turn>R\n\x03\n\n\x02<end_of_turn>\n"},
                                roles)};
    }
    case ChatTemplate::llama2:
      return {{"[INST] \x02 [/INST]", "<<SYS>>\n\x02\n<</SYS>>\n\n", " \x02 </s>"}};
    case ChatTemplate::llama3:
      break;
  }
  constexpr const char* kHeader = "<|start_header_id|>R<|end_header_id|>\n\n";
  const std::string header = kHeader, turn = header + "\x02<|eot_id|>";
  const std::string day = "Today Date: ", &dates = chat.system_opening;
  const std::string dated =
      header + dates.substr(0, dates.find(day)) + day + "\x03\n\n\x02<|eot_id|>";
  auto turns = with_roles({turn.c_str(), dated.c_str()}, {"\x01", "system", "user", "assistant"});
  turns.push_back(replaced(header, "R", "assistant") + kEnd);
  return {turns};
}

Texts values_of(ChatTemplate format, char what) {
  const bool prefix = what == kPrefix;
  if (format == ChatTemplate::gemma && prefix) return {{"\x03\n\n\x0f"}};
  if (format == ChatTemplate::gemma) return {{"\x02\x0f"}, {"\x03\n\n\x02\x0f", "\x0e\x02\x0f"}};
  if (format == ChatTemplate::llama2 && prefix) return {{"<<SYS>>\n\x02\n<</SYS>>\n\n\x0f"}};
  if (format == ChatTemplate::llama2)
    return {{"\x02\x0f"}, {"<<SYS>>\n\x02\n<</SYS>>\n\n\x03\x0f", "\x0e\x03\x0f"}};
  if (format == ChatTemplate::chatml) return {{"\x02\x0f", "<think>\n\x02\n</think>\n\n\x02\x0f"}};
  return {{"\x02\x0f"}};
}

Places::Places(Texts texts) : texts_(std::move(texts.any)), later_(texts_.size()) {
  texts_.insert(texts_.end(), texts.first.begin(), texts.first.end());
  begin();
}

void Places::begin() { ways = {Way{{kBetween}}}; }

Fit Places::write(std::string_view text) {
  for (const char c : text) {
    Ways next;
    for (const Way& way : ways) {
      Way on{behind(way.places, c), way.met};
      if (on.places.empty()) return by_space(way.places, c) ? Fit::other_space : Fit::otherwise;
      if (on.places.contains(kBetween)) on.met.clear();
      next.insert(std::move(on));
    }
    ways = std::move(next);
  }
  return Fit::fits;
}

void Places::forget() {
  Ways plain;
  for (const Way& way : ways) plain.insert({way.places});
  ways = std::move(plain);
}

/// Of two ways that only `condition` tells apart there is one.
void Places::forget(const std::string& condition) {
  for (const Way& way : Ways(ways)) {
    Way twin = way;
    const auto met = twin.met.find(condition);
    if (met == twin.met.end()) continue;
    met->second = !met->second;
    if (ways.erase(twin) == 0) continue;
    ways.erase(way);
    twin.met.erase(met);
    ways.insert(std::move(twin));
  }
  if (!few()) forget();
}

bool Places::ended() const {
  return !ways.empty() &&
         std::ranges::all_of(ways, [&](const Way& way) { return ends(way.places); });
}

bool Places::short_of_space() const {
  return std::ranges::any_of(ways, [&](const Way& way) {
    return !ends(way.places) && std::ranges::all_of(way.places, [&](const auto& place) {
      return is_blank(read(place)) || is_blank(rest(place));
    });
  });
}

std::string_view Places::read(const std::pair<std::size_t, std::size_t>& place) const {
  return std::string_view(texts_[place.first]).substr(0, place.second);
}

/// Without the end.
std::string_view Places::rest(const std::pair<std::size_t, std::size_t>& place) const {
  const std::string_view rest = std::string_view(texts_[place.first]).substr(place.second);
  return rest.substr(0, rest.find(kEnd));
}

bool Places::ends(const Set& places) const {
  return std::ranges::any_of(
      places, [&](const auto& place) { return place == kBetween || rest(place).empty(); });
}

void Places::go_on(Set& on, std::size_t text, std::size_t at, char c) const {
  const char expected = texts_[text][at];
  if (c != expected && (c != kTold || expected != kContent)) return;
  if (++at == texts_[text].size()) {
    on.insert(kBetween);
  } else {
    on.emplace(text, at);
  }
}

Places::Set Places::behind(const Set& places, char c) const {
  const bool between = places.contains(kBetween);
  if (c == kTurn || c == kBos) return between ? Set{kBetween} : Set();
  Set on;
  for (const auto& [text, at] : places) {
    if (at > 0) go_on(on, text, at, c);
  }
  for (std::size_t text = 0; between && text < (later ? later_ : texts_.size()); ++text)
    go_on(on, text, 0, c);
  return on;
}

/// Whether `c` is refused for white space: itself, what should be in its place, or what was before
/// it.
bool Places::by_space(const Set& places, char c) const {
  return is_blank({&c, 1}) || std::ranges::all_of(places, [&](const auto& place) {
           return place != kBetween &&
                  (is_blank(rest(place).substr(0, 1)) || is_blank(read(place)));
         });
}

}  // namespace polyhead::inline v0::models
