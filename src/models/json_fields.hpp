// The fields of a config.json, by name and with their refusals.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/config.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"

namespace polyhead::inline v0::models {

/// One object of the file; null counts as absent.
class Fields {
 public:
  Fields(const std::string& path, const nlohmann::json& from, Reading reading = Reading::run,
         std::string prefix = "")
      : path_(path), from_(from), prefix_(std::move(prefix)), reading_(reading) {
    if (!from.is_object()) {
      throw formats::FileError(
          path, prefix_.empty()
                    ? "is not an object"
                    : formats::quote(prefix_.substr(0, prefix_.size() - 1)) + " is no object");
    }
  }

  bool has(const char* name) const { return given(name) && !from_[name].is_null(); }
  bool given(const char* name) const { return from_.contains(name); }  ///< if as null
  const nlohmann::json& at(const char* name) const { return from_[name]; }
  Fields object(const char* name) const {
    return Fields(path_, from_[name], reading_, prefix_ + name + ".");
  }
  bool described() const { return reading_ == Reading::described; }

  /// The field as messages name it.
  std::string full_name(const char* name) const { return formats::quote(prefix_ + name); }
  [[noreturn]] void refuse(const char* name, const std::string& why) const {
    throw formats::FileError(path_, full_name(name) + " " + why);
  }
  /// For a value that is there and cannot be.
  [[noreturn]] void refuse_value(const char* name, const std::string& expected) const {
    refuse(name, "is " + formats::escape_controls(from_[name].dump().substr(0, 40)) +
                     " (expected " + expected + ")");
  }

  std::int64_t integer(const char* name) const {
    if (!has(name)) refuse(name, "is missing");
    const nlohmann::json& value = from_[name];
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() >
             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))) {
      refuse(name, "is not a whole number");
    }
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return has(name) ? integer(name) : otherwise;
  }
  double real(const char* name, double otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_number()) refuse(name, "is not a number");
    return from_[name].get<double>();
  }
  double positive(const char* name, double otherwise) const {
    const double value = real(name, otherwise);
    if (!(value > 0.0) || !std::isfinite(value)) refuse_value(name, "a positive number");
    return value;
  }
  bool boolean(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_boolean()) refuse(name, "is neither true nor false");
    return from_[name].get<bool>();
  }
  /// Numbers, at most `most` of them.
  std::vector<float> reals(const char* name, std::size_t most) const {
    if (!has(name)) refuse(name, "is missing");
    const nlohmann::json& list = from_[name];
    if (!list.is_array() || list.size() > most ||
        !std::all_of(list.begin(), list.end(),
                     [](const nlohmann::json& x) { return x.is_number(); })) {
      refuse(name, "is not a list of at most " + std::to_string(most) + " numbers");
    }
    return list.get<std::vector<float>>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    if (!has(name)) return otherwise;
    if (!from_[name].is_string()) refuse(name, "is not text");
    return from_[name].get<std::string>();
  }
  /// For what would change the numbers and is not supported.
  void only(const char* name, const std::string& found, const std::string& expected) const {
    if (found != expected)
      refuse(name, "is " + formats::quote(found) + " (expected " + expected + ")");
  }
  void never(const char* name) const {
    if (boolean(name, false)) refuse(name, "is true, which is not supported");
  }
  /// For what changes no size.
  void never_run(const char* name) const {
    if (!described()) never(name);
  }

 private:
  const std::string& path_;
  const nlohmann::json& from_;
  std::string prefix_;
  Reading reading_;
};

}  // namespace polyhead::inline v0::models
