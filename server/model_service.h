// comoe.v1.ModelService: what is served. Answers in the reaction; nothing blocks.
#pragma once

#include "comoe/v1/model.grpc.pb.h"
#include "server/request_metrics.h"
#include "server/serving_state.h"

namespace comoe::server {

// Thread-safe. Both outlive the gRPC server that this is registered with.
class ModelService final : public v1::ModelService::CallbackService {
 public:
  ModelService(const ServingState& state, RequestMetrics& metrics) : state_(state), metrics_(metrics) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  const ServingState& state_;
  RequestMetrics& metrics_;
};

}  // namespace comoe::server
