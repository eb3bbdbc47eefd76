// Log levels by name, and the gRPC library's own lines in our log.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::cli {

// debug, info, warning, error. INVALID_ARGUMENT names them.
absl::Status SetLogLevelByName(absl::string_view name);

// What the gRPC library logs goes to our log: its errors as warnings (it has many, most about a peer that left), the
// rest as debug lines. For the whole process; call before any other use of gRPC.
void RouteGrpcLog();

}  // namespace comoe::cli
