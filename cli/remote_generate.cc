#include "cli/remote_generate.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/grpc_log.h"
#include "comoe/v1/inference.grpc.pb.h"
#include "engine/base/status_macros.h"
#include "grpcpp/grpcpp.h"

namespace comoe::cli {
namespace {

absl::Status FillRequest(const RemoteGenerateOptions& options, v1::GenerateRequest* request) {
  if (options.max_tokens < 1 || options.max_tokens > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("--max-tokens is ", options.max_tokens, ": at least 1"));
  }
  request->set_text(options.prompt);
  request->mutable_stopping()->set_max_tokens(static_cast<std::uint32_t>(options.max_tokens));
  request->mutable_output()->set_return_token_ids(false);
  v1::SamplingParams* sampling = request->mutable_sampling();
  if (options.greedy) {
    sampling->set_temperature(0.0F);
  } else if (options.temperature.has_value()) {
    sampling->set_temperature(*options.temperature);
  }
  if (options.top_p.has_value()) {
    sampling->set_top_p(*options.top_p);
  }
  if (options.top_k.has_value()) {
    sampling->set_top_k(*options.top_k);
  }
  if (options.seed.has_value()) {
    sampling->set_seed(*options.seed);
  }
  return absl::OkStatus();
}

// False: it cannot be written.
bool Write(const std::string& text, std::FILE* out) {
  return std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
}

}  // namespace

absl::Status RemoteGenerate(absl::string_view address, const RemoteGenerateOptions& options, std::FILE* out) {
  RouteGrpcLog();
  v1::GenerateStreamRequest request;
  COMOE_RETURN_IF_ERROR(FillRequest(options, request.mutable_request()));
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(std::string(address), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, request);
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    if (!Write(response.delta().text(), out)) {
      context.TryCancel();
      return absl::UnavailableError("the text cannot be written");
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat(address, ": ", status.error_message(),
                                     status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                                             status.error_message().find("shutting down") == std::string::npos
                                         ? " (is a comoe serve running there, and done loading?)"
                                         : ""));
  }
  return Write("\n", out) ? absl::OkStatus() : absl::UnavailableError("the text cannot be written");
}

}  // namespace comoe::cli
