// comoe.v1.InferenceService over gRPC's callback API. Reactions only move bytes: generations run as
// Generation says, Tokenize and Detokenize on worker threads.
#pragma once

#include "comoe/v1/inference.grpc.pb.h"
#include "server/generation.h"
#include "server/request_metrics.h"

namespace comoe::server {

// Thread-safe. Everything in `services` outlives the gRPC server that this is registered with.
class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  explicit InferenceService(const GenerationServices& services) : services_(services) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  absl::Status RunTokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) const;
  absl::Status RunDetokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) const;
  absl::Status RunAbort(const v1::AbortRequest& request, v1::AbortResponse* response) const;
  // Runs `work` on a worker thread, then ends the RPC with its status.
  template <typename Work>
  grpc::ServerUnaryReactor* OnWorker(grpc::CallbackServerContext* context, Method method,
                                     std::size_t request_bytes, Work work);

  const GenerationServices services_;
};

}  // namespace comoe::server
