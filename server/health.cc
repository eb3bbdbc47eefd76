#include "server/health.h"

namespace comoe::server {

Health::Health(grpc::HealthCheckServiceInterface* service) : service_(service) { SetServing(false); }

void Health::SetServing(bool serving) {
  if (service_ != nullptr) {
    service_->SetServingStatus("", serving);
    service_->SetServingStatus(kInferenceServiceName, serving);
  }
}

void Health::Shutdown() {
  if (service_ != nullptr) {
    service_->Shutdown();
  }
}

}  // namespace comoe::server
