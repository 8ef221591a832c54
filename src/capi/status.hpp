// Exceptions become statuses here: every exported function runs its body through guarded().
#pragma once

#include <exception>
#include <new>

#include "polyhead/error.h"
#include "polyhead/polyhead_c.h"

namespace polyhead::inline v0::capi {

/// A caller's modifier or executor that said it failed. Travels through the library as any
/// exception of theirs does.
class CallbackFailed : public std::exception {
 public:
  CallbackFailed(const char* what_failed, int code) : what_failed_(what_failed), code_(code) {}
  const char* what() const noexcept override { return what_failed_; }
  int code() const noexcept { return code_; }

 private:
  const char* what_failed_;
  int code_;
};

/// Throws InvalidArgument with a printf-style message.
[[noreturn]] [[gnu::format(printf, 1, 2)]] void refuse(const char* format, ...);

/// Remembers what went wrong for polyhead_last_error(); never allocates, so that running out of
/// memory can be told.
[[gnu::format(printf, 3, 4)]] polyhead_status record(polyhead_status status, const char* call,
                                                     const char* format, ...) noexcept;

/// Remembers what an argument was refused for, in the names that the structs of C have.
polyhead_status record_refusal(const char* message) noexcept;

template <class Body>
polyhead_status guarded(const char* call, Body&& body) noexcept {
  try {
    body();
    return POLYHEAD_OK;
  } catch (const InvalidArgument& error) {
    return record_refusal(error.what());
  } catch (const CallbackFailed& error) {
    return record(POLYHEAD_CALLBACK_FAILED, call, "%s returned %d, expected 0", error.what(),
                  error.code());
  } catch (const std::bad_alloc&) {
    return record(POLYHEAD_OUT_OF_MEMORY, call, "out of memory");
  } catch (const std::exception& error) {
    return record(POLYHEAD_INTERNAL_ERROR, call, "%s", error.what());
  } catch (...) {
    return record(POLYHEAD_INTERNAL_ERROR, call, "an exception of unknown type");
  }
}

}  // namespace polyhead::inline v0::capi
