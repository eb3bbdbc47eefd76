#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offline.h"
#include "cli/remote_generate.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::cli {
namespace {

struct GenerateOptions {
  EngineOptions engine;
  RemoteGenerateOptions remote;  // the request's own flags serve both ways
  std::string server;
};

void WriteText(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The model's own defaults, with the flags on top.
api::SamplingParams SamplingOf(const RemoteGenerateOptions& flags, const api::ModelInfo& info) {
  api::SamplingParams sampling = info.default_sampling;
  sampling.temperature = flags.greedy ? 0.0F : flags.temperature.value_or(sampling.temperature);
  sampling.top_p = flags.top_p.value_or(sampling.top_p);
  sampling.top_k =
      flags.top_k.value_or(sampling.top_k) == -1 ? 0 : flags.top_k.value_or(sampling.top_k);  // -1 is off
  sampling.seed = flags.seed.has_value() ? *flags.seed : base::DrawSeed();
  return sampling;
}

bool IsEos(const api::ModelInfo& info, base::TokenId token) {
  for (const base::TokenId eos : info.eos_token_ids) {
    if (token == eos) {
      return true;
    }
  }
  return false;
}

absl::Status GenerateHere(const GenerateOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(options.engine));
  const tokenizer::Tokenizer* tokenizer = bundle->tokenizer();
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", options.engine.model, "' has no tokenizer.json: text needs one"));
  }
  const api::ModelInfo& info = bundle->engine().model_info();
  const api::SamplingParams sampling = SamplingOf(options.remote, info);
  COMOE_RETURN_IF_ERROR(api::ValidateSamplingParams(sampling, info.vocab_size));
  COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> next, tokenizer->Encode(options.remote.prompt, true));
  if (next.empty()) {
    return absl::InvalidArgumentError(
        "the prompt is empty, and this model adds no token of its own: write a --prompt");
  }
  const std::int64_t max_positions = bundle->engine().capacity().max_positions;
  if (static_cast<std::int64_t>(next.size()) >= max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", next.size(), " tokens: at most ",
                                                   max_positions - 1, " fit, so that one more can follow"));
  }
  OfflineSequence sequence(bundle->engine());
  tokenizer::StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/true);
  for (std::int64_t i = 0; i < options.remote.max_tokens; ++i) {
    if (sequence.position() + static_cast<std::int64_t>(next.size()) >= max_positions) {
      std::fprintf(stderr, "\ncomoe: stopped after %lld tokens: the context of %lld is full\n",
                   static_cast<long long>(i), static_cast<long long>(max_positions));
      break;
    }
    COMOE_ASSIGN_OR_RETURN(const api::SpanResult result, sequence.AppendAndSample(next, sampling));
    if (IsEos(info, *result.token)) {
      break;
    }
    COMOE_ASSIGN_OR_RETURN(const std::string text, decoder.Push(*result.token));
    WriteText(text);
    next = {*result.token};
  }
  COMOE_ASSIGN_OR_RETURN(const std::string rest, decoder.Flush());
  WriteText(absl::StrCat(rest, "\n"));
  return absl::OkStatus();
}

absl::Status Generate(const GenerateOptions& options) {
  if (options.remote.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-tokens is ", options.remote.max_tokens, ": at least 1"));
  }
  if (options.remote.greedy && options.remote.temperature.value_or(0.0F) != 0.0F) {
    return absl::InvalidArgumentError("--greedy and --temperature contradict each other: give one of them");
  }
  if (!tokenizer::IsValidUtf8(options.remote.prompt)) {
    return absl::InvalidArgumentError("the prompt is not UTF-8");
  }
  if (!options.server.empty() && !options.engine.model.empty()) {
    return absl::InvalidArgumentError("--server and --model exclude each other: a server has its own model");
  }
  if (!options.server.empty()) {
    return RemoteGenerate(options.server, options.remote, stdout);
  }
  return GenerateHere(options);
}

}  // namespace

void AddGenerateCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      app.add_subcommand("generate", "complete a prompt, here or through a server; prints the text only");
  AddEngineFlags(*command, options->engine);
  RemoteGenerateOptions& request = options->remote;
  command->add_option("--server", options->server, "HOST:PORT of a running comoe serve: loads nothing here");
  command->add_option("--prompt", request.prompt, "the text to continue")->required();
  command->add_option("--max-tokens", request.max_tokens, "tokens to generate at most")
      ->capture_default_str();
  command->add_flag("--greedy", request.greedy, "always the most probable token");
  command->add_option("--seed", request.seed, "the same seed gives the same text");
  command->add_option("--temperature", request.temperature, "0 to 2 (default: the model's)");
  command->add_option("--top-p", request.top_p,
                      "keep the most probable tokens up to this share (default: the model's)");
  command->add_option("--top-k", request.top_k, "keep this many tokens, 0 for all (default: the model's)");
  command->callback([options, &result] { result = Generate(*options); });
}

}  // namespace comoe::cli
