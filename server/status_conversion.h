// Between absl::Status and gRPC's: the codes are the same numbers, by design of both.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"
#include "scheduler/batching/request.h"

namespace comoe::server {

// The message is cut to 2048 bytes: it travels in a header, and clients refuse headers above 8 KiB. Bytes
// that are not printable ASCII are kept as they are; gRPC percent-encodes them.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// "OK", "INVALID_ARGUMENT", ...: the metric label. "UNKNOWN" for a code that gRPC does not have.
absl::string_view CodeName(absl::StatusCode code);
inline constexpr int kNumStatusCodes = 17;  // gRPC's, 0 to 16

// What the RPC of a request that ended so answers: OK for the reasons that give a whole completion.
absl::Status StatusOfOutcome(const batching::RequestOutcome& outcome);

}  // namespace comoe::server
