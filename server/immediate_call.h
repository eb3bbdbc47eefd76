// A unary RPC that is answered in its reaction.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/request_metrics.h"
#include "server/status_conversion.h"

namespace comoe::server {

// Ends the RPC and counts it; what the handler returns.
inline grpc::ServerUnaryReactor* EndNow(grpc::CallbackServerContext* context, Method method,
                                        const absl::Status& status, RequestMetrics& metrics) {
  Terminal terminal;
  terminal.method = method;
  terminal.code = status.code();
  metrics.RecordTerminal(terminal);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace comoe::server
