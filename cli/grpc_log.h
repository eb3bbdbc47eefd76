// Log levels by name, and the gRPC library's own lines in our log.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::cli {

// debug, info, warning, error. INVALID_ARGUMENT names them.
absl::Status SetLogLevelByName(absl::string_view name);

// What the gRPC library logs goes to our log as debug lines, its errors too: they tell of peers that left,
// and what matters comes back as a status. For the whole process; call before any other use of gRPC.
void RouteGrpcLog();

}  // namespace comoe::cli
