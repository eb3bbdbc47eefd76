// Between absl::Status and gRPC's: the codes are the same numbers, by design of both.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"
#include "scheduler/batching/request.h"

namespace comoe::server {

// With the details that error_details.h knows. The message is cut to 1024 bytes: it travels in a header, and
// clients refuse headers above 8 KiB. Bytes that are not printable ASCII are kept as they are; gRPC
// percent-encodes them.
grpc::Status ToGrpcStatus(const absl::Status& status);
// Without details.
absl::Status FromGrpcStatus(const grpc::Status& status);
// What the RPC tells beside its status: grpc-retry-pushback-ms with UNAVAILABLE. Before Finish.
void AddTrailers(const absl::Status& status, grpc::CallbackServerContext* context);

// At most `max_bytes` of UTF-8, whole characters; "..." follows what was cut.
std::string CutText(absl::string_view text, std::size_t max_bytes);

// "OK", "INVALID_ARGUMENT", ...: the metric label. "UNKNOWN" for a code that gRPC does not have.
absl::string_view CodeName(absl::StatusCode code);
inline constexpr int kNumStatusCodes = 17;  // gRPC's, 0 to 16

// What the RPC of a request that ended so answers: OK for the reasons that give a whole completion.
absl::Status StatusOfOutcome(const batching::RequestOutcome& outcome);

}  // namespace comoe::server
