#include "server/health.h"

#include <utility>

namespace comoe::server {

Health::Health(std::vector<grpc::HealthCheckServiceInterface*> services) : services_(std::move(services)) {
  SetServing(false);
}

void Health::SetServing(bool serving) {
  for (grpc::HealthCheckServiceInterface* service : services_) {
    if (service != nullptr) {
      service->SetServingStatus("", serving);
      service->SetServingStatus(kInferenceServiceName, serving);
    }
  }
}

void Health::Shutdown() {
  for (grpc::HealthCheckServiceInterface* service : services_) {
    if (service != nullptr) {
      service->Shutdown();
    }
  }
}

}  // namespace comoe::server
