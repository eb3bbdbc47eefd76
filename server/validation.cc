#include "server/validation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"
#include "server/request_fields.h"

namespace comoe::server {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr int kMaxStopTokenIds = 128;
constexpr std::size_t kMaxLogitBias = 1024;
constexpr std::size_t kMaxCacheSaltBytes = 64;
constexpr std::uint32_t kMaxLogprobs = 20;

absl::Status ParseLogitBias(const v1::SamplingParams& sampling, std::int32_t vocab_size,
                            std::vector<api::LogitBias>* out) {
  if (sampling.logit_bias().size() > kMaxLogitBias) {
    return InvalidField("sampling.logit_bias", absl::StrCat("has ", sampling.logit_bias().size(),
                                                            " entries: ", kMaxLogitBias, " at most"));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    if (id >= static_cast<std::uint32_t>(vocab_size)) {
      return InvalidField(field, absl::StrCat("is of no token: the vocabulary has ", vocab_size));
    }
    if (!(-100.0F <= bias && bias <= 100.0F)) {
      return OutOfRange(field, bias, "[-100, 100]");
    }
    out->push_back({static_cast<base::TokenId>(id), bias});
  }
  std::sort(out->begin(), out->end(),
            [](const api::LogitBias& a, const api::LogitBias& b) { return a.id < b.id; });
  return absl::OkStatus();
}

absl::StatusOr<api::SamplingParams> ParseSampling(const v1::SamplingParams& sampling,
                                                  const api::ModelInfo& model) {
  api::SamplingParams out = model.default_sampling;
  if (sampling.has_temperature()) {
    out.temperature = sampling.temperature();
  }
  if (sampling.has_top_p()) {
    out.top_p = sampling.top_p();
  }
  if (sampling.has_top_k()) {
    out.top_k = sampling.top_k() == -1 ? 0 : sampling.top_k();
  }
  if (sampling.has_min_p()) {
    out.min_p = sampling.min_p();
  }
  if (sampling.has_repetition_penalty()) {
    out.repetition_penalty = sampling.repetition_penalty();
  }
  if (sampling.has_presence_penalty()) {
    out.presence_penalty = sampling.presence_penalty();
  }
  if (sampling.has_frequency_penalty()) {
    out.frequency_penalty = sampling.frequency_penalty();
  }
  out.seed = sampling.has_seed() ? sampling.seed() : base::DrawSeed();
  COMOE_RETURN_IF_ERROR(ParseLogitBias(sampling, model.vocab_size, &out.logit_bias));
  if (const absl::Status status = api::ValidateSamplingParams(out, model.vocab_size); !status.ok()) {
    const absl::string_view message = status.message();  // "top_p is ..."
    const std::size_t space = std::min(message.find(' '), message.size());
    return InvalidField(absl::StrCat("sampling.", message.substr(0, space)),
                        message.substr(std::min(space + 1, message.size())));
  }
  return out;
}

absl::StatusOr<std::int64_t> ParseNumChoices(const v1::SamplingParams& sampling, const Limits& limits) {
  const std::int64_t n = sampling.has_n() ? sampling.n() : 1;
  if (n < 1) {
    return InvalidField("sampling.n", "is 0: it is at least 1");
  }
  if (n > limits.max_choices) {
    return NotBuilt("sampling.n", absl::StrCat("more than ", limits.max_choices, " completions a request"),
                    "send more requests");
  }
  return n;
}

absl::Status ParseStopStrings(const v1::StoppingParams& stopping, const RequestBounds& bounds,
                              std::vector<std::string>* out) {
  if (stopping.stop_size() > kMaxStopStrings) {
    return InvalidField("stopping.stop", absl::StrCat("has ", stopping.stop_size(),
                                                      " strings: ", kMaxStopStrings, " at most"));
  }
  for (int i = 0; i < stopping.stop_size(); ++i) {
    const std::string& stop = stopping.stop(i);
    const std::string field = absl::StrCat("stopping.stop[", i, "]");
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return InvalidField(field, absl::StrCat("has ", stop.size(), " bytes: 1 to ", kMaxStopBytes));
    }
    if (!tokenizer::IsValidUtf8(stop)) {
      return InvalidField(field, "is not UTF-8");
    }
    out->push_back(stop);
  }
  if (!out->empty() && !bounds.has_tokenizer) {
    return WithField(
        absl::FailedPreconditionError(
            "stopping.stop: the model has no tokenizer, so there is no text; use stop_token_ids"),
        "stopping.stop");
  }
  return absl::OkStatus();
}

absl::Status ParseStopping(const v1::StoppingParams& stopping, const RequestBounds& bounds,
                           GenerationSpec* spec) {
  batching::StopConditions& stop = spec->request.stop;
  // Where less is left of the context, the scheduler ends it there and says so.
  stop.max_tokens =
      stopping.has_max_tokens() ? std::int64_t{stopping.max_tokens()} : bounds.limits.default_max_tokens;
  if (stop.max_tokens == 0) {
    return InvalidField("stopping.max_tokens", "is 0: it is at least 1");
  }
  stop.min_tokens = stopping.min_tokens();
  if (stop.min_tokens > stop.max_tokens) {
    return OutOfRange("stopping.min_tokens", stop.min_tokens,
                      absl::StrCat("[0, stopping.max_tokens], which is ", stop.max_tokens));
  }
  COMOE_RETURN_IF_ERROR(ParseStopStrings(stopping, bounds, &spec->stop_strings));
  if (stopping.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidField("stopping.stop_token_ids", absl::StrCat("has ", stopping.stop_token_ids_size(),
                                                                " ids: ", kMaxStopTokenIds, " at most"));
  }
  COMOE_ASSIGN_OR_RETURN(stop.stop_token_ids, ToTokenIds("stopping.stop_token_ids", stopping.stop_token_ids(),
                                                         bounds.model.vocab_size));
  stop.ignore_eos = stopping.ignore_eos();
  spec->output.include_stop_in_output = stopping.include_stop_in_output();
  if (stopping.has_time_limit()) {
    COMOE_ASSIGN_OR_RETURN(spec->request.time_limit,
                           ToDuration("stopping.time_limit", stopping.time_limit(), 1));
  }
  return absl::OkStatus();
}

absl::Status ParseLogprobs(const v1::OutputOptions& output, GenerationSpec* spec) {
  if (output.logprobs() > kMaxLogprobs) {
    return OutOfRange("output.logprobs", output.logprobs(), "[0, 20]");
  }
  if (output.prompt_logprobs() > kMaxLogprobs) {
    return OutOfRange("output.prompt_logprobs", output.prompt_logprobs(), "[0, 20]");
  }
  spec->output.return_logprobs = output.return_logprobs() || output.logprobs() > 0;
  if (spec->output.return_logprobs) {
    spec->request.top_logprobs = static_cast<std::int32_t>(output.logprobs());
  }
  if (output.prompt_logprobs() > 0) {
    spec->request.prompt_logprobs = static_cast<std::int32_t>(output.prompt_logprobs());
  }
  return absl::OkStatus();
}

// After ParseStopping: what contradicts prefill_only is looked for.
absl::Status ParsePrefillOnly(const v1::OutputOptions& output, GenerationSpec* spec) {
  spec->request.prefill_only = output.prefill_only();
  if (output.prefill_only() && spec->num_choices > 1) {
    return InvalidField("sampling.n", "is above 1, and with output.prefill_only there is nothing to choose");
  }
  if (output.prefill_only() && spec->request.stop.min_tokens > 0) {
    return InvalidField("stopping.min_tokens", "is above 0, and with output.prefill_only there is no token");
  }
  return absl::OkStatus();
}

absl::Status ParseOutput(const v1::OutputOptions& output, const RequestBounds& bounds, GenerationSpec* spec) {
  COMOE_RETURN_IF_ERROR(ParseLogprobs(output, spec));
  COMOE_RETURN_IF_ERROR(ParsePrefillOnly(output, spec));
  spec->truncate_prompt_tokens = output.truncate_prompt_tokens();
  if ((output.return_text() || output.return_token_pieces() || output.echo_prompt()) &&
      !bounds.has_tokenizer) {
    return absl::FailedPreconditionError("output: the model has no tokenizer, so there is no text");
  }
  spec->output.return_token_pieces = output.return_token_pieces();
  if (output.has_return_token_ids()) {
    spec->output.return_token_ids = output.return_token_ids();
  }
  spec->output.return_text = output.has_return_text() ? output.return_text() : bounds.has_tokenizer;
  spec->output.echo_prompt = output.echo_prompt();
  if (output.echo_prompt() && !spec->output.return_text) {
    return InvalidField("output.echo_prompt", "is true and output.return_text false: the echo is text");
  }
  if (output.has_skip_special_tokens()) {
    spec->output.skip_special_tokens = output.skip_special_tokens();
  }
  if (output.has_add_special_tokens()) {
    spec->add_special_tokens = output.add_special_tokens();
  }
  return absl::OkStatus();
}

absl::Status ParseOrder(const v1::GenerateRequest& request, batching::Request* out) {
  if (request.priority() < -100 || request.priority() > 100) {
    return OutOfRange("priority", request.priority(), "[-100, 100]");
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return InvalidField("cache_salt", absl::StrCat("has ", request.cache_salt().size(),
                                                   " bytes: ", kMaxCacheSaltBytes, " at most"));
  }
  out->priority = request.priority();
  out->cache_salt = request.cache_salt();
  return absl::OkStatus();
}

// Whole features that are not there.
absl::Status CheckUnbuiltFeatures(const v1::GenerateRequest& request) {
  if (request.has_structured()) {
    if (request.structured().constraint_case() == v1::StructuredOutput::CONSTRAINT_NOT_SET) {
      return InvalidField("structured", "names no constraint");
    }
    return NotBuilt("structured", "structured output", "leave it absent for free text");
  }
  if (!request.lora_adapter().empty()) {
    return NotBuilt("lora_adapter", "LoRA", "leave it empty for the model as it is");
  }
  return absl::OkStatus();
}

absl::Status ParseStreamOptions(const v1::StreamOptions& stream, const Limits& limits, OutputSpec* output) {
  if (stream.has_min_chunk_tokens()) {
    output->min_chunk_tokens = stream.min_chunk_tokens();
    if (!(1 <= output->min_chunk_tokens && output->min_chunk_tokens <= limits.max_stream_backlog_tokens)) {
      return OutOfRange("stream.min_chunk_tokens", output->min_chunk_tokens,
                        absl::StrCat("[1, ", limits.max_stream_backlog_tokens, "]"));
    }
  }
  COMOE_ASSIGN_OR_RETURN(const absl::Duration delay,
                         ToDuration("stream.max_chunk_delay", stream.max_chunk_delay(), 0));
  if (delay > absl::ZeroDuration()) {
    output->max_chunk_delay = delay;
  }
  if (stream.has_include_usage_every_chunk()) {
    output->include_usage_every_chunk = stream.include_usage_every_chunk();
  }
  output->include_timing = stream.include_timing();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationSpec> ParseGenerateRequest(const v1::GenerateRequest& request,
                                                    const RequestBounds& bounds) {
  GenerationSpec spec;
  COMOE_RETURN_IF_ERROR(CheckModel(request.model(), bounds.model));
  if (!request.request_id().empty()) {
    COMOE_RETURN_IF_ERROR(CheckRequestId("request_id", request.request_id()));
  }
  spec.request.id = request.request_id().empty() ? MakeRequestId() : request.request_id();
  switch (request.prompt_case()) {
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidField("prompt", "is missing: text or tokens is required");
    case v1::GenerateRequest::kText:
      if (!bounds.has_tokenizer) {
        return WithField(absl::FailedPreconditionError("text: the model has no tokenizer; send tokens"),
                         "text");
      }
      COMOE_RETURN_IF_ERROR(CheckTextBytes("text", request.text(), bounds.limits));
      spec.prompt_is_text = true;
      break;
    case v1::GenerateRequest::kTokens:
      break;
  }
  COMOE_ASSIGN_OR_RETURN(spec.request.sampling, ParseSampling(request.sampling(), bounds.model));
  COMOE_ASSIGN_OR_RETURN(spec.num_choices, ParseNumChoices(request.sampling(), bounds.limits));
  COMOE_RETURN_IF_ERROR(ParseStopping(request.stopping(), bounds, &spec));
  COMOE_RETURN_IF_ERROR(ParseOutput(request.output(), bounds, &spec));
  COMOE_RETURN_IF_ERROR(ParseOrder(request, &spec.request));
  COMOE_RETURN_IF_ERROR(CheckUnbuiltFeatures(request));
  if (!spec.prompt_is_text) {
    COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> tokens,
                           ToTokenIds("tokens.ids", request.tokens().ids(), bounds.model.vocab_size));
    COMOE_RETURN_IF_ERROR(SetPrompt(std::move(tokens), bounds, &spec));
  }
  return spec;
}

absl::StatusOr<GenerationSpec> ParseGenerateStreamRequest(const v1::GenerateStreamRequest& request,
                                                          const RequestBounds& bounds) {
  absl::StatusOr<GenerationSpec> spec = ParseGenerateRequest(request.request(), bounds);
  if (!spec.ok()) {
    return PrefixField(spec.status(), "request.");
  }
  COMOE_RETURN_IF_ERROR(ParseStreamOptions(request.stream(), bounds.limits, &spec->output));
  return spec;
}

absl::Status SetPrompt(std::vector<base::TokenId> prompt, const RequestBounds& bounds, GenerationSpec* spec) {
  // The oneof: whichever of its fields gave the tokens.
  constexpr absl::string_view kField = "prompt";
  if (prompt.empty()) {
    return WithField(absl::InvalidArgumentError("the prompt is empty: it needs at least one token"), kField);
  }
  if (const auto keep = static_cast<std::size_t>(spec->truncate_prompt_tokens);
      keep > 0 && prompt.size() > keep) {
    prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(keep));
  }
  const auto length = static_cast<std::int64_t>(prompt.size());
  const std::int64_t for_completion = spec->request.prefill_only ? 0 : 1;
  if (length + for_completion > bounds.max_positions) {
    return WithField(
        absl::InvalidArgumentError(absl::StrCat(
            "the prompt has ", length, " tokens: at most ", bounds.max_positions - for_completion, " fit",
            for_completion > 0 ? ", and one position is left for the completion" : "")),
        kField);
  }
  spec->request.prompt = std::move(prompt);
  return absl::OkStatus();
}

std::vector<std::string> Features(bool has_tokenizer) {
  std::vector<std::string> features = {"tokens",
                                       "greedy",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "repetition_penalty",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "logit_bias",
                                       "seed",
                                       "n",
                                       "max_tokens",
                                       "min_tokens",
                                       "stop_token_ids",
                                       "ignore_eos",
                                       "time_limit",
                                       "logprobs",
                                       "prompt_logprobs",
                                       "truncate_prompt_tokens",
                                       "prefill_only",
                                       "abort",
                                       "streaming"};
  if (has_tokenizer) {
    features.insert(features.begin(), {"text", "tokenize", "detokenize", "stop", "echo_prompt"});
  }
  return features;
}

}  // namespace comoe::server
