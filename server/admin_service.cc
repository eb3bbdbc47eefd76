#include "server/admin_service.h"

#include <string>

#include "absl/time/clock.h"
#include "engine/base/status_macros.h"
#include "server/immediate_call.h"
#include "server/messages.h"

namespace comoe::server {
namespace {

v1::ServerState StateOf(Phase phase) {
  switch (phase) {
    case Phase::kLoading:
      return v1::SERVER_STATE_LOADING;
    case Phase::kServing:
      return v1::SERVER_STATE_SERVING;
    case Phase::kDraining:
      break;
  }
  return v1::SERVER_STATE_DRAINING;
}

void FillLimits(const ServerConfig& config, v1::ServerLimits* message) {
  message->set_max_message_bytes(ToUint64(config.limits.max_message_bytes));
  message->set_max_prompt_bytes(ToUint64(config.limits.max_prompt_bytes));
  message->set_default_max_tokens(ToUint32(config.limits.default_max_tokens));
  message->set_max_batch_tokens(ToUint64(config.scheduler.max_batch_tokens));
  message->set_max_sequences(ToUint64(config.scheduler.max_sequences));
  message->set_max_waiting_requests(ToUint64(config.scheduler.max_waiting_requests));
  ToMessage(config.limits.stream_stall_timeout, message->mutable_stream_stall_timeout());
  message->set_max_stream_backlog_tokens(ToUint64(config.limits.max_stream_backlog_tokens));
}

}  // namespace

AdminService::AdminService(const ServingState& state, const ServerConfig& config, RequestMetrics& metrics)
    : state_(state), config_(config), metrics_(metrics), start_time_(absl::Now()), start_(MonotonicNow()) {}

grpc::ServerUnaryReactor* AdminService::GetServerInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetServerInfoRequest* /*request*/,
                                                      v1::GetServerInfoResponse* response) {
  response->set_version(std::string(Version()));
  response->set_state(StateOf(state_.phase()));
  ToMessage(start_time_, response->mutable_start_time());
  ToMessage(MonotonicNow() - start_, response->mutable_uptime());
  if (const Backend* backend = state_.backend(); backend != nullptr) {
    response->set_model(backend->model.name);
    response->set_device(backend->device);
  }
  FillLimits(config_, response->mutable_limits());
  return EndNow(context, Method::kGetServerInfo, absl::OkStatus(), metrics_);
}

grpc::ServerUnaryReactor* AdminService::GetLoads(grpc::CallbackServerContext* context,
                                                 const v1::GetLoadsRequest* /*request*/,
                                                 v1::GetLoadsResponse* response) {
  const absl::StatusOr<const Backend*> backend = state_.Loaded();
  if (backend.ok()) {
    const batching::LoadSnapshot load = (*backend)->scheduler->load();
    response->set_running_requests(ToUint64(load.running));
    response->set_waiting_requests(ToUint64(load.waiting));
    response->set_used_kv_blocks(ToUint64(load.used_blocks));
    response->set_total_kv_blocks(ToUint64(load.total_blocks));
    if (load.total_blocks > 0) {
      response->set_kv_usage_ratio(static_cast<double>(load.used_blocks) /
                                   static_cast<double>(load.total_blocks));
    }
    if (load.last_progress > absl::UnixEpoch()) {
      ToMessage(load.last_progress, response->mutable_last_progress());
    }
    response->set_open_generations(ToUint64(state_.open_generations()));
  }
  return EndNow(context, Method::kGetLoads, backend.status(), metrics_);
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* /*request*/,
                                              v1::DrainResponse* /*response*/) {
  return EndNow(
      context, Method::kDrain,
      absl::UnimplementedError("Drain: draining by RPC is not supported by this server; send SIGTERM"),
      metrics_);
}

grpc::ServerUnaryReactor* AdminService::FlushCache(grpc::CallbackServerContext* context,
                                                   const v1::FlushCacheRequest* /*request*/,
                                                   v1::FlushCacheResponse* /*response*/) {
  return EndNow(context, Method::kFlushCache,
                absl::UnimplementedError("FlushCache: this server has no prefix cache to flush"), metrics_);
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* /*request*/,
                                                    v1::SetLogLevelResponse* /*response*/) {
  return EndNow(
      context, Method::kSetLogLevel,
      absl::UnimplementedError("SetLogLevel: changing the log level by RPC is not supported by this "
                               "server; start it with --log-level"),
      metrics_);
}

grpc::ServerUnaryReactor* AdminService::StartProfile(grpc::CallbackServerContext* context,
                                                     const v1::StartProfileRequest* /*request*/,
                                                     v1::StartProfileResponse* /*response*/) {
  return EndNow(context, Method::kStartProfile,
                absl::UnimplementedError("StartProfile: profiling is not supported by this server; use perf"),
                metrics_);
}

grpc::ServerUnaryReactor* AdminService::StopProfile(grpc::CallbackServerContext* context,
                                                    const v1::StopProfileRequest* /*request*/,
                                                    v1::StopProfileResponse* /*response*/) {
  return EndNow(context, Method::kStopProfile,
                absl::UnimplementedError("StopProfile: profiling is not supported by this server; use perf"),
                metrics_);
}

}  // namespace comoe::server
