#include "server/admin_service.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
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
  message->set_max_metadata_bytes(ToUint64(config.limits.max_metadata_bytes));
  message->set_max_answer_bytes(ToUint64(config.limits.max_answer_bytes));
  message->set_max_connections(ToUint64(config.max_connections));
  message->set_max_total_backlog_tokens(ToUint64(config.limits.max_total_backlog_tokens));
  message->set_max_choices(ToUint32(config.limits.max_choices));
}

void FillLoads(const batching::LoadSnapshot& load, v1::GetLoadsResponse* response) {
  response->set_running_requests(ToUint64(load.running));
  response->set_waiting_requests(ToUint64(load.waiting));
  response->set_used_kv_blocks(ToUint64(load.used_blocks));
  response->set_total_kv_blocks(ToUint64(load.total_blocks));
  response->set_cached_kv_blocks(ToUint64(load.cached_blocks));
  response->set_waiting_tokens(ToUint64(load.waiting_tokens));
  if (load.total_blocks > 0) {
    response->set_kv_usage_ratio(static_cast<double>(load.used_blocks) /
                                 static_cast<double>(load.total_blocks));
  }
  if (load.last_progress > absl::UnixEpoch()) {
    ToMessage(load.last_progress, response->mutable_last_progress());
  }
}

}  // namespace

AdminService::AdminService(const ServingState& state, const ServerConfig& config, WorkerPool& workers,
                           RequestMetrics& metrics)
    : state_(state),
      config_(config),
      workers_(workers),
      metrics_(metrics),
      start_time_(absl::Now()),
      start_(MonotonicNow()) {}

grpc::ServerUnaryReactor* AdminService::GetServerInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetServerInfoRequest* /*request*/,
                                                      v1::GetServerInfoResponse* response) {
  return AnswerNow(context, Method::kGetServerInfo, metrics_, [&] {
    response->set_version(std::string(Version()));
    response->set_state(StateOf(state_.phase()));
    ToMessage(start_time_, response->mutable_start_time());
    ToMessage(MonotonicNow() - start_, response->mutable_uptime());
    if (const Backend* backend = state_.backend(); backend != nullptr) {
      response->set_model(backend->model.name);
      response->set_device(backend->device);
    }
    FillLimits(config_, response->mutable_limits());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::GetLoads(grpc::CallbackServerContext* context,
                                                 const v1::GetLoadsRequest* /*request*/,
                                                 v1::GetLoadsResponse* response) {
  return AnswerNow(context, Method::kGetLoads, metrics_, [&]() -> absl::Status {
    COMOE_ASSIGN_OR_RETURN(const Backend* backend, state_.Loaded());
    FillLoads(backend->scheduler->load(), response);
    response->set_open_generations(ToUint64(state_.open_generations()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* /*response*/) {
  return AnswerNow(context, Method::kDrain, metrics_, [&]() -> absl::Status {
    if (!config_.on_drain) {
      return absl::UnimplementedError("Drain: this process does not drain by RPC; send SIGTERM");
    }
    absl::Duration timeout = config_.drain_timeout;
    if (request->has_timeout()) {
      timeout = absl::Seconds(request->timeout().seconds()) + absl::Nanoseconds(request->timeout().nanos());
      if (!(timeout >= absl::ZeroDuration())) {
        return absl::InvalidArgumentError("timeout is below 0");
      }
    }
    config_.on_drain(timeout);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::FlushCache(grpc::CallbackServerContext* context,
                                                   const v1::FlushCacheRequest* request,
                                                   v1::FlushCacheResponse* response) {
  const absl::Duration arrival = MonotonicNow();
  metrics_.RecordStart(Method::kFlushCache);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto finish = [this, context, reactor, arrival](const absl::Status& status) {
    FinishCall(context, reactor, Method::kFlushCache, arrival, status, metrics_);
  };
  const bool posted = workers_.Post(WorkerPool::Urgency::kQuestion, 0, [this, finish, request, response] {
    finish(ForgetPrefixes(*request, response));
  });
  if (!posted) {
    finish(absl::ResourceExhaustedError("too many requests wait for a worker: try again later"));
  }
  return reactor;
}

absl::Status AdminService::ForgetPrefixes(const v1::FlushCacheRequest& request,
                                          v1::FlushCacheResponse* response) const {
  COMOE_ASSIGN_OR_RETURN(const Backend* backend, state_.Loaded());
  // The scheduler's thread answers, between two steps, and calls no gRPC.
  const auto answer = std::make_shared<std::promise<absl::StatusOr<std::int64_t>>>();
  backend->scheduler->ForgetPrefixes(request.force(), [answer](absl::StatusOr<std::int64_t> blocks) {
    answer->set_value(std::move(blocks));
  });
  COMOE_ASSIGN_OR_RETURN(const std::int64_t blocks, answer->get_future().get());
  response->set_flushed_blocks(ToUint64(blocks));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelResponse* response) {
  return AnswerNow(context, Method::kSetLogLevel, metrics_, [&]() -> absl::Status {
    if (request->level() < v1::LOG_LEVEL_DEBUG || request->level() > v1::LOG_LEVEL_ERROR) {
      return absl::InvalidArgumentError(
          absl::StrCat("level is ", static_cast<int>(request->level()), ": debug (1) to error (4)"));
    }
    // The enums differ by the leading UNSPECIFIED.
    response->set_previous(static_cast<v1::LogLevel>(static_cast<int>(base::GetLogLevel()) + 1));
    base::SetLogLevel(static_cast<base::LogLevel>(static_cast<int>(request->level()) - 1));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::StartProfile(grpc::CallbackServerContext* context,
                                                     const v1::StartProfileRequest* /*request*/,
                                                     v1::StartProfileResponse* /*response*/) {
  return AnswerNow(context, Method::kStartProfile, metrics_, [] {
    return absl::UnimplementedError("StartProfile: profiling is not supported by this server; use perf");
  });
}

grpc::ServerUnaryReactor* AdminService::StopProfile(grpc::CallbackServerContext* context,
                                                    const v1::StopProfileRequest* /*request*/,
                                                    v1::StopProfileResponse* /*response*/) {
  return AnswerNow(context, Method::kStopProfile, metrics_, [] {
    return absl::UnimplementedError("StopProfile: profiling is not supported by this server; use perf");
  });
}

}  // namespace comoe::server
