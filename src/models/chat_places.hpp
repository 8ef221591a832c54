// The texts that a format's turns are made of, and where in them a chat template may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat.hpp"

namespace polyhead::inline v0::models {

// What stands in a turn for something that is worked out. A variable may stand for a content; a
// system message within a turn of the user is kTold, which a message's own content is not, and with
// what follows it there kPrefix. Nothing goes on behind kEnd.
inline constexpr char kRole = '\x01', kContent = '\x02', kTold = '\x03', kTurn = '\x04',
                      kBos = '\x05', kEos = '\x06', kPrefix = '\x0e', kEnd = '\x0f';
/// All of them, and what stands for an escape that Python refuses.
inline constexpr std::string_view kNoText{"\0\x01\x02\x03\x04\x05\x06\x0e\x0f", 9};

/// `text` with `by` for each `what`.
std::string replaced(std::string text, std::string_view what, std::string_view by);

/// Texts of which a template writes one after the other.
struct Texts {
  std::vector<std::string> any;
  std::vector<std::string> first{};  ///< before or within the first turn of a loop alone
};

/// The turns of a format; of an answer to come the opening.
Texts turns_of(const ChatFormat& chat);

/// What a variable may hold that stands for `what`, a content or a prefix of one.
Texts values_of(ChatTemplate format, char what);

/// How a text goes on: as it should in each way, with other white space in one, or otherwise.
enum class Fit : std::uint8_t { fits, other_space, otherwise };

/// Where in the texts a template may be by now, in each way through its branches: every way must
/// fit.
class Places {
 public:
  using Set = std::set<std::pair<std::size_t, std::size_t>>;  ///< text, and how much of it
  struct Way {
    Set places;
    /// What its conditions were, within one text; a later one in the same words is the same.
    std::map<std::string, bool> met{};
    auto operator<=>(const Way&) const = default;
  };
  using Ways = std::set<Way>;

  explicit Places(Texts texts);

  Ways ways;           ///< none: nothing comes here
  bool later = false;  ///< behind the first turn

  void begin();
  Fit write(std::string_view text);

  /// What conditions were, of all or one.
  void forget();
  void forget(const std::string& condition);

  /// Whether all ways are between texts, or behind the last.
  bool ended() const;
  /// Whether a way is short of white space alone, or has no more than that of the next text.
  bool short_of_space() const;
  /// Whether there are no more ways than anybody writes on purpose, which bounds the time.
  bool few() const { return ways.size() <= kMostWays; }

 private:
  static constexpr std::pair<std::size_t, std::size_t> kBetween{0, 0};
  static constexpr std::size_t kMostWays = 32;  ///< several times what models' templates have

  std::string_view read(const std::pair<std::size_t, std::size_t>& place) const;
  std::string_view rest(const std::pair<std::size_t, std::size_t>& place) const;
  bool ends(const Set& places) const;
  void go_on(Set& on, std::size_t text, std::size_t at, char c) const;
  Set behind(const Set& places, char c) const;
  bool by_space(const Set& places, char c) const;

  std::vector<std::string> texts_;
  std::size_t later_;  ///< how many there are behind the first turn
};

}  // namespace polyhead::inline v0::models
