// `comoe health`: the answer of grpc.health.v1, as an exit code for probes.
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/grpc_log.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace comoe::cli {
namespace {

namespace health = ::grpc::health::v1;

struct HealthOptions {
  std::string server = "127.0.0.1:50051";
  std::string service = "comoe.v1.InferenceService";
  double timeout_s = 3;
};

absl::Status Check(const HealthOptions& options) {
  RouteGrpcLog();
  const auto stub =
      health::Health::NewStub(::grpc::CreateChannel(options.server, ::grpc::InsecureChannelCredentials()));
  ::grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(options.timeout_s)));
  health::HealthCheckRequest request;
  request.set_service(options.service);
  health::HealthCheckResponse response;
  const ::grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    if (status.error_code() == ::grpc::StatusCode::NOT_FOUND) {
      return absl::NotFoundError(absl::StrCat(options.server, " has no service '", options.service, "'"));
    }
    return absl::UnavailableError(absl::StrCat("no answer from ", options.server, ": ",
                                               status.error_message(), " (is a comoe serve running there?)"));
  }
  const std::string& name = health::HealthCheckResponse::ServingStatus_Name(response.status());
  if (response.status() != health::HealthCheckResponse::SERVING) {
    return absl::UnavailableError(absl::StrCat(options.server, " is ", name));
  }
  absl::PrintF("%s\n", name);
  return absl::OkStatus();
}

}  // namespace

void AddHealthCommand(CLI::App& app, absl::Status& result) {
  CLI::App* command =
      app.add_subcommand("health", "Ask a server for its health; exit 0 only if it is SERVING");
  const auto options = std::make_shared<HealthOptions>();
  command->add_option("--server", options->server, "Its gRPC address, HOST:PORT")->capture_default_str();
  command->add_option("--service", options->service, "What to ask for; \"\" is the process as a whole")
      ->capture_default_str();
  command->add_option("--timeout", options->timeout_s, "Seconds to wait for the answer")
      ->capture_default_str();
  command->callback([options, &result] { result = Check(*options); });
}

}  // namespace comoe::cli
