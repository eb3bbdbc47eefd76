// comoe.v1.AdminService: the server's own state. Answers in the reaction; nothing blocks.
#pragma once

#include "absl/time/time.h"
#include "comoe/v1/admin.grpc.pb.h"
#include "server/config.h"
#include "server/request_metrics.h"
#include "server/serving_state.h"
#include "server/worker_pool.h"

namespace comoe::server {

// Thread-safe. All of them outlive the gRPC server that this is registered with.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(const ServingState& state, const ServerConfig& config, WorkerPool& workers,
               RequestMetrics& metrics);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context, const v1::GetLoadsRequest* request,
                                     v1::GetLoadsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const v1::FlushCacheRequest* request,
                                       v1::FlushCacheResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;
  grpc::ServerUnaryReactor* StartProfile(grpc::CallbackServerContext* context,
                                         const v1::StartProfileRequest* request,
                                         v1::StartProfileResponse* response) override;
  grpc::ServerUnaryReactor* StopProfile(grpc::CallbackServerContext* context,
                                        const v1::StopProfileRequest* request,
                                        v1::StopProfileResponse* response) override;

 private:
  // On a worker: waits for the step under way.
  absl::Status ForgetPrefixes(const v1::FlushCacheRequest& request, v1::FlushCacheResponse* response) const;

  const ServingState& state_;
  const ServerConfig& config_;
  WorkerPool& workers_;
  RequestMetrics& metrics_;
  const absl::Time start_time_;
  const absl::Duration start_;  // the same by the monotonic clock
};

}  // namespace comoe::server
