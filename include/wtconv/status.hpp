// Status: what every call of the library returns. No exceptions cross the API.
#pragma once

#include <string>
#include <utility>

#include "wtconv/export.hpp"

namespace WTCONV_EXPORT wtconv {

enum class StatusCode {
  ok,
  invalid_argument,     // the caller's input breaks the contract; the message holds the offending value
  unsupported,          // valid, but the asked backend cannot do it
  workspace_too_small,  // the message holds the bytes given and needed
  unavailable,          // no such backend, or it cannot run on this machine
  out_of_memory,        // device memory or another resource ran out
  device_error,         // a device call failed
};

// "ok", "invalid argument", ...
const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

}  // namespace wtconv
