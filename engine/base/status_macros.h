// COMOE_RETURN_IF_ERROR and COMOE_ASSIGN_OR_RETURN: Debian's Abseil predates Abseil's own macros.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace comoe::base {

// The same status with `context: ` in front of its message; OK stays OK. Each layer adds context once.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace comoe::base

#define COMOE_STATUS_CONCAT_INNER(a, b) a##b
#define COMOE_STATUS_CONCAT(a, b) COMOE_STATUS_CONCAT_INNER(a, b)

#define COMOE_RETURN_IF_ERROR(expr)                                 \
  do {                                                              \
    if (absl::Status comoe_status_ = (expr); !comoe_status_.ok()) { \
      return comoe_status_;                                         \
    }                                                               \
  } while (false)

#define COMOE_ASSIGN_OR_RETURN(lhs, expr) \
  COMOE_ASSIGN_OR_RETURN_IMPL(COMOE_STATUS_CONCAT(comoe_status_or_, __LINE__), lhs, expr)
#define COMOE_ASSIGN_OR_RETURN_IMPL(statusor, lhs, expr) \
  auto statusor = (expr);                                \
  if (!statusor.ok()) {                                  \
    return std::move(statusor).status();                 \
  }                                                      \
  lhs = *std::move(statusor)
