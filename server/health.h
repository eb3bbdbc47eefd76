// grpc.health.v1, as the gRPC library serves it, told what is true.
#pragma once

#include <vector>

#include "grpcpp/health_check_service_interface.h"

namespace comoe::server {

// What readiness probes ask for: this service accepts work.
inline constexpr char kInferenceServiceName[] = "comoe.v1.InferenceService";

// Thread-safe. The library by itself reports "" (the process as a whole) as SERVING from the first moment and
// knows no other name, so both are set to NOT_SERVING here, right after the server has been built.
class Health {
 public:
  // Of the built servers; they outlive this. Null ones are passed over.
  explicit Health(std::vector<grpc::HealthCheckServiceInterface*> services);

  // Both names.
  void SetServing(bool serving);
  // NOT_SERVING for good.
  void Shutdown();

 private:
  const std::vector<grpc::HealthCheckServiceInterface*> services_;
};

}  // namespace comoe::server
