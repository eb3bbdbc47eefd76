// Generate: the whole completions in one answer.
#pragma once

#include <optional>

#include "server/generation.h"

namespace comoe::server {

class UnaryTransport : public Transport {
 public:
  virtual v1::GenerateResponse& response() = 0;  // until Finish
};

class UnaryGeneration final : public Generation {
 public:
  // Both outlive what the transport's Finish ends.
  UnaryGeneration(const v1::GenerateRequest& request, UnaryTransport& transport, absl::Time deadline,
                  const GenerationServices& services);

 private:
  absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const override;
  const v1::GenerateRequest& request() const override { return request_; }
  void Advance() override;
  void EndIfTooLarge();
  void FillResponse(v1::GenerateResponse* response);

  const v1::GenerateRequest& request_;
  UnaryTransport& transport_;
};

}  // namespace comoe::server
