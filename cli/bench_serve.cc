// `comoe bench serve`: how a running server does under load.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/grpc_log.h"
#include "cli/load_generator.h"
#include "cli/progress.h"
#include "comoe/v1/inference.grpc.pb.h"
#include "comoe/v1/model.grpc.pb.h"
#include "engine/base/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct BenchServeOptions {
  LoadOptions load;
  std::string prompts;
  std::string prompt_tokens = "128";
  std::string output_tokens = "128";
  double timeout_s = 0;
  bool json = false;
  bool quiet = false;
};

absl::Status Call(const grpc::Status& status, absl::string_view server) {
  return status.ok() ? absl::OkStatus()
                     : absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                    absl::StrCat(server, ": ", status.error_message(),
                                                 " (is a comoe serve running there, and done loading?)"));
}

// The vocabulary, and the ids of the file that prompts are cut from.
absl::Status AskServer(BenchServeOptions& options) {
  const auto channel = grpc::CreateChannel(options.load.server, grpc::InsecureChannelCredentials());
  const auto models = v1::ModelService::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::GetModelResponse model;
  COMOE_RETURN_IF_ERROR(Call(models->GetModel(&context, {}, &model), options.load.server));
  options.load.vocab_size = model.model().vocab_size();
  if (options.prompts.empty()) {
    return absl::OkStatus();
  }
  std::ifstream file(options.prompts, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(absl::StrCat("--prompts ", options.prompts, ": cannot be read, or is empty"));
  }
  v1::TokenizeRequest request;
  request.set_text(text.str());
  request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  grpc::ClientContext tokenize;
  const auto inference = v1::InferenceService::NewStub(channel);
  COMOE_RETURN_IF_ERROR(Call(inference->Tokenize(&tokenize, request, &response), options.load.server));
  options.load.text_tokens.assign(response.token_ids().begin(), response.token_ids().end());
  return absl::OkStatus();
}

struct Summary {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

Summary Summarise(std::vector<double> values) {
  Summary summary;
  if (values.empty()) {
    return summary;
  }
  std::sort(values.begin(), values.end());
  // The smallest value that a share of at least `p` does not exceed.
  const auto percentile = [&values](double p) {
    const double rank = std::ceil(p * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
  };
  for (const double value : values) {
    summary.mean += value / static_cast<double>(values.size());
  }
  summary.p50 = percentile(0.5);
  summary.p90 = percentile(0.9);
  summary.p99 = percentile(0.99);
  summary.max = values.back();
  return summary;
}

struct Row {
  const char* name;
  const char* key;
  Summary summary;
};

std::vector<Row> Rows(const LoadResult& result) {
  return {{"first token", "time_to_first_token_seconds", Summarise(result.first_token)},
          {"inter-token", "inter_token_seconds", Summarise(result.inter_token)},
          {"end to end", "end_to_end_seconds", Summarise(result.end_to_end)}};
}

void PrintTable(const LoadResult& result) {
  const auto ok = static_cast<double>(result.end_to_end.size());
  absl::PrintF("%d requests in %.2f s, at most %d at once\n", result.requests, result.seconds,
               result.most_in_flight);
  absl::PrintF("%10.1f output tokens/s\n%10.1f prompt and output tokens/s\n%10.2f requests/s\n",
               static_cast<double>(result.output_tokens) / result.seconds,
               static_cast<double>(result.output_tokens + result.prompt_tokens) / result.seconds,
               ok / result.seconds);
  absl::PrintF("\n%-12s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
  for (const Row& row : Rows(result)) {
    absl::PrintF("%-12s %10.2f %10.2f %10.2f %10.2f %10.2f\n", row.name, row.summary.mean * 1e3,
                 row.summary.p50 * 1e3, row.summary.p90 * 1e3, row.summary.p99 * 1e3, row.summary.max * 1e3);
  }
  for (const auto& [code, count] : result.errors) {
    absl::PrintF("\n%d ended with %s\n", count, code);
  }
  if (!result.first_error.empty()) {
    absl::PrintF("the first one: %s\n", result.first_error);
  }
}

void PrintJson(const BenchServeOptions& options, const LoadResult& result) {
  nlohmann::json out = {
      {"server", options.load.server},
      {"requests", result.requests},
      {"clients",
       options.load.requests_per_second > 0 ? nlohmann::json() : nlohmann::json(options.load.clients)},
      {"requests_per_second_asked", options.load.requests_per_second},
      {"prompt_tokens_asked", options.prompt_tokens},
      {"output_tokens_asked", options.output_tokens},
      {"seed", options.load.seed},
      {"seconds", result.seconds},
      {"most_in_flight", result.most_in_flight},
      {"prompt_tokens", result.prompt_tokens},
      {"output_tokens", result.output_tokens},
      {"output_tokens_per_second", static_cast<double>(result.output_tokens) / result.seconds},
      {"requests_per_second", static_cast<double>(result.end_to_end.size()) / result.seconds},
      {"errors", result.errors},
      {"first_error", result.first_error}};
  for (const Row& row : Rows(result)) {
    out[row.key] = {{"mean", row.summary.mean},
                    {"p50", row.summary.p50},
                    {"p90", row.summary.p90},
                    {"p99", row.summary.p99},
                    {"max", row.summary.max}};
  }
  absl::PrintF("%s\n", out.dump(2));
}

absl::Status BenchServe(BenchServeOptions options) {
  LoadOptions& load = options.load;
  if (load.clients < 1 || load.requests < 1 || !(load.requests_per_second >= 0) ||
      !(options.timeout_s >= 0)) {
    return absl::InvalidArgumentError(
        "--clients and --requests are at least 1, --rate and --timeout at least 0");
  }
  COMOE_ASSIGN_OR_RETURN(load.prompt_tokens, ParseLengths("--prompt-tokens", options.prompt_tokens));
  COMOE_ASSIGN_OR_RETURN(load.output_tokens, ParseLengths("--output-tokens", options.output_tokens));
  load.timeout = options.timeout_s > 0 ? absl::Seconds(options.timeout_s) : absl::InfiniteDuration();
  RouteGrpcLog();
  COMOE_RETURN_IF_ERROR(AskServer(options));
  LoadResult result;
  {
    Progress progress("load", options.quiet);
    COMOE_ASSIGN_OR_RETURN(
        result, GenerateLoad(load, [&](const LoadProgress& now) {
          progress.Update(
              static_cast<std::uint64_t>(now.ended), static_cast<std::uint64_t>(load.requests),
              absl::StrCat("requests, ", now.in_flight, " in flight, ", now.output_tokens, " tokens"));
        }));
  }
  options.json ? PrintJson(options, result) : PrintTable(result);
  return result.end_to_end.empty() ? absl::UnavailableError("no request ended well") : absl::OkStatus();
}

}  // namespace

void AddBenchServeCommand(CLI::App& bench, absl::Status& result) {
  CLI::App* command = bench.add_subcommand("serve", "load on a running server: throughput and latencies");
  const auto options = std::make_shared<BenchServeOptions>();
  LoadOptions& load = options->load;
  command->add_option("--server", load.server, "HOST:PORT")->capture_default_str();
  auto* clients =
      command->add_option("--clients", load.clients,
                          "closed loop: that many clients, each sends its next request when one ended");
  clients->capture_default_str();
  command
      ->add_option("--rate", load.requests_per_second,
                   "open loop instead: requests a second, Poisson arrivals")
      ->excludes(clients);
  command->add_option("--requests", load.requests, "in all")->capture_default_str();
  command->add_option("--prompts", options->prompts,
                      "text file that prompts are cut from (default: random tokens)");
  command->add_option("--prompt-tokens", options->prompt_tokens, "N, LOW-HIGH or exp:MEAN")
      ->capture_default_str();
  command->add_option("--output-tokens", options->output_tokens, "N, LOW-HIGH or exp:MEAN")
      ->capture_default_str();
  command->add_option("--temperature", load.temperature, "0 is greedy")->capture_default_str();
  command->add_option("--seed", load.seed, "the same seed sends the same requests")->capture_default_str();
  command->add_option("--timeout", options->timeout_s, "deadline of a request in seconds (none)");
  command->add_flag("!--stop-at-eos", load.ignore_eos, "completions may end early");
  command->add_flag("--json", options->json, "for machines");
  command->add_flag("--quiet", options->quiet, "no progress on stderr");
  command->callback([options, &result] { result = BenchServe(*options); });
}

}  // namespace comoe::cli
