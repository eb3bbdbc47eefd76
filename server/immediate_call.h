// A unary RPC without a stream behind it: counted, answered, ended.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/engine_thread.h"
#include "server/messages.h"
#include "server/request_metrics.h"
#include "server/status_conversion.h"

namespace comoe::server {

// Ends an RPC that arrived at `arrival` and was counted as started. Request and response are gone after it.
// `reactor` is the context's default one: asking the context for it again would make it anew.
inline void FinishCall(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor, Method method,
                       absl::Duration arrival, const absl::Status& status, RequestMetrics& metrics) {
  Terminal terminal;
  terminal.method = method;
  terminal.code = status.code();
  terminal.elapsed = MonotonicNow() - arrival;
  metrics.RecordTerminal(terminal);
  EngineThread::CheckNotCurrent();
  AddTrailers(status, context);
  reactor->Finish(ToGrpcStatus(status));
}

// In the reaction: runs `answer` (absl::Status()), which fills the response, counts the RPC and ends it; what
// the handler returns.
template <typename Answer>
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context, Method method,
                                    RequestMetrics& metrics, const Answer& answer) {
  const absl::Duration arrival = MonotonicNow();
  metrics.RecordStart(method);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  FinishCall(context, reactor, method, arrival, answer(), metrics);
  return reactor;
}

}  // namespace comoe::server
