// What a call is refused with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "polyhead/error.h"

namespace polyhead::test {

/// The message of the error that a call throws; "accepted" where it throws none.
template <class Error = InvalidArgument, class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// The call is refused, with `part` in the message.
template <class Call>
void expect_refusal(const Call& call, const std::string& part) {
  const std::string message = refusal_of(call);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace polyhead::test
