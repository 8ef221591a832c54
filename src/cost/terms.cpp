#include "cost/terms.hpp"

#include <utility>

namespace polyhead::inline v0::cost {
namespace {

[[noreturn]] void overflow() { throw TooLarge("cost: a count is beyond 2^128"); }

Count value_of(const Term& term) {
  try {
    Count value = 1;
    for (const Factor& factor : term.factors) value = value * factor.value;
    if (term.parts.empty()) return value;
    Count total = 0;
    for (const Term& part : term.parts) total = total + part.value;
    return value * total;
  } catch (const TooLarge&) {
    throw TooLarge("cost: " + term.id +
                   " is beyond 2^128; expected sizes of a machine that exists");
  }
}

/// "a · b · (c + d)", each factor and part as `name_factor` and `name_part` write it.
template <class NameFactor, class NamePart>
std::string written(const Term& term, NameFactor name_factor, NamePart name_part) {
  std::string text;
  for (const Factor& factor : term.factors) {
    text += (text.empty() ? "" : " · ") + name_factor(factor);
  }
  if (term.parts.empty()) return text.empty() ? "0" : text;
  const bool bracketed = !term.factors.empty() && term.parts.size() > 1;
  std::string inside;
  for (const Term& part : term.parts) inside += (inside.empty() ? "" : " + ") + name_part(part);
  if (text.empty()) return inside;
  return text + " · " + (bracketed ? "(" + inside + ")" : inside);
}

}  // namespace

void Count::negative() { throw InvalidArgument("cost: a count is negative"); }

Count operator+(Count a, Count b) {
  Wide value = 0;
  if (__builtin_add_overflow(a.value_, b.value_, &value)) overflow();
  return Count(value);
}

Count operator-(Count a, Count b) {
  if (b.value_ > a.value_) Count::negative();
  return Count(a.value_ - b.value_);
}

Count operator*(Count a, Count b) {
  Wide value = 0;
  if (__builtin_mul_overflow(a.value_, b.value_, &value)) overflow();
  return Count(value);
}

Count operator/(Count a, Count b) {
  if (b.value_ == 0) throw InvalidArgument("cost: a count is divided by 0");
  return Count(a.value_ / b.value_);
}

Count ceil_div(Count a, Count b) {
  const Count whole = a / b;
  return whole * b == a ? whole : whole + Count(1);
}

bool Count::fits(std::int64_t limit) const {
  return limit >= 0 && value_ <= static_cast<Wide>(limit);
}

std::string Count::str() const {
  std::string digits;
  for (Wide left = value_; left != 0; left /= 10) {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(left % 10)));
  }
  return digits.empty() ? "0" : digits;
}

std::string Count::grouped() const {
  std::string digits = str();
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string Term::label() const { return layers.empty() ? id : id + "[" + layers + "]"; }

std::string Term::formula() const {
  return written(
      *this, [](const Factor& f) { return f.name.empty() ? f.value.grouped() : f.name; },
      [](const Term& t) { return t.label(); });
}

std::string Term::numbers() const {
  return written(
      *this, [](const Factor& f) { return f.value.grouped(); },
      [](const Term& t) { return t.value.grouped(); });
}

const Term* Term::find(std::string_view wanted) const {
  if (id == wanted) return this;
  for (const Term& part : parts) {
    if (const Term* found = part.find(wanted)) return found;
  }
  return nullptr;
}

Count Term::at(std::string_view wanted) const {
  if (id == wanted) return value;
  Count total = 0, factor = 1;
  for (const Factor& f : factors) factor = factor * f.value;
  for (const Term& part : parts) total = total + part.at(wanted);
  return factor * total;
}

Term product(std::string id, Unit unit, std::vector<Factor> factors, std::string note) {
  Term term;
  term.id = std::move(id);
  term.note = std::move(note);
  term.unit = unit;
  term.factors = std::move(factors);
  term.value = value_of(term);
  return term;
}

Term sum(std::string id, Unit unit, std::vector<Term> parts, std::string note,
         std::vector<Factor> factors) {
  Term term;
  term.id = std::move(id);
  term.note = std::move(note);
  term.unit = unit;
  term.factors = std::move(factors);
  term.parts = std::move(parts);
  if (term.parts.empty()) term.factors.assign(1, constant(0));
  term.value = value_of(term);
  return term;
}

}  // namespace polyhead::inline v0::cost
