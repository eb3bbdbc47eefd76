// grpc.health.v1, as the gRPC library serves it, told what is true.
#pragma once

#include "grpcpp/health_check_service_interface.h"

namespace comoe::server {

// What readiness probes ask for: this service accepts work.
inline constexpr char kInferenceServiceName[] = "comoe.v1.InferenceService";

// Thread-safe. The library by itself reports "" (the process as a whole) as SERVING from the first moment and
// knows no other name, so both are set to NOT_SERVING here, right after the server has been built.
class Health {
 public:
  // `service` is the built server's, null without one (then nothing is reported); it outlives this.
  explicit Health(grpc::HealthCheckServiceInterface* service);

  // Both names.
  void SetServing(bool serving);
  // NOT_SERVING for good.
  void Shutdown();

 private:
  grpc::HealthCheckServiceInterface* const service_;
};

}  // namespace comoe::server
