#include "server/validation.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"

namespace comoe::server {
namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr int kMaxStopStrings = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr int kMaxStopTokenIds = 128;
constexpr std::size_t kMaxLogitBias = 1024;
constexpr std::size_t kMaxCacheSaltBytes = 64;
constexpr std::uint32_t kMaxLogprobs = 20;

template <typename Value>
absl::Status OutOfRange(absl::string_view field, Value value, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": it lies in ", range));
}

absl::Status NotBuilt(absl::string_view field, absl::string_view feature, absl::string_view instead) {
  return absl::UnimplementedError(
      absl::StrCat(field, ": ", feature, " is not supported by this server; ", instead));
}

absl::Status CheckPenalties(const v1::SamplingParams& sampling) {
  if (sampling.has_repetition_penalty()) {
    const float value = sampling.repetition_penalty();
    if (!(0.0F < value && value <= 2.0F)) {
      return OutOfRange("sampling.repetition_penalty", value, "(0, 2]");
    }
    if (value != 1.0F) {
      return NotBuilt("sampling.repetition_penalty", "a repetition penalty", "leave it absent or 1");
    }
  }
  const auto check = [](absl::string_view field, bool present, float value) {
    if (present && !(-2.0F <= value && value <= 2.0F)) {
      return OutOfRange(field, value, "[-2, 2]");
    }
    if (present && value != 0.0F) {
      return NotBuilt(field, "this penalty", "leave it absent or 0");
    }
    return absl::OkStatus();
  };
  COMOE_RETURN_IF_ERROR(
      check("sampling.presence_penalty", sampling.has_presence_penalty(), sampling.presence_penalty()));
  return check("sampling.frequency_penalty", sampling.has_frequency_penalty(), sampling.frequency_penalty());
}

absl::Status CheckLogitBias(const v1::SamplingParams& sampling, std::int32_t vocab_size) {
  if (sampling.logit_bias().size() > kMaxLogitBias) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias has ", sampling.logit_bias().size(),
                                                   " entries: ", kMaxLogitBias, " at most"));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id >= static_cast<std::uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias names token ", id, ": the vocabulary has ", vocab_size));
    }
    if (!(-100.0F <= bias && bias <= 100.0F)) {
      return OutOfRange(absl::StrCat("sampling.logit_bias[", id, "]"), bias, "[-100, 100]");
    }
  }
  if (!sampling.logit_bias().empty()) {
    return NotBuilt("sampling.logit_bias", "a logit bias", "leave it empty");
  }
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
  out.seed = sampling.has_seed() ? sampling.seed() : base::DrawSeed();
  if (const absl::Status status = api::ValidateSamplingParams(out, model.vocab_size); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("sampling.", status.message()));
  }
  COMOE_RETURN_IF_ERROR(CheckPenalties(sampling));
  COMOE_RETURN_IF_ERROR(CheckLogitBias(sampling, model.vocab_size));
  if (sampling.has_n() && sampling.n() == 0) {
    return absl::InvalidArgumentError("sampling.n is 0: it is at least 1");
  }
  if (sampling.has_n() && sampling.n() > 1) {
    return NotBuilt("sampling.n", "more than one completion a request", "send the request as often");
  }
  return out;
}

absl::Status CheckStopStrings(const v1::StoppingParams& stopping) {
  if (stopping.stop_size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        absl::StrCat("stopping.stop has ", stopping.stop_size(), " strings: ", kMaxStopStrings, " at most"));
  }
  for (int i = 0; i < stopping.stop_size(); ++i) {
    const std::size_t bytes = stopping.stop(i).size();
    if (bytes == 0 || bytes > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stopping.stop[", i, "] has ", bytes, " bytes: 1 to ", kMaxStopBytes));
    }
  }
  if (stopping.stop_size() > 0) {
    return NotBuilt("stopping.stop", "stopping at strings", "use stopping.stop_token_ids");
  }
  return absl::OkStatus();
}

absl::Status ParseStopping(const v1::StoppingParams& stopping, const api::ModelInfo& model,
                           GenerationSpec* spec) {
  batching::StopConditions& stop = spec->request.stop;
  spec->max_tokens_given = stopping.has_max_tokens();
  if (stopping.has_max_tokens()) {
    if (stopping.max_tokens() == 0) {
      return absl::InvalidArgumentError("stopping.max_tokens is 0: it is at least 1");
    }
    stop.max_tokens = stopping.max_tokens();
    if (stopping.min_tokens() > stopping.max_tokens()) {
      return OutOfRange("stopping.min_tokens", stopping.min_tokens(), "[0, stopping.max_tokens]");
    }
  }
  if (stopping.min_tokens() > 0) {
    return NotBuilt("stopping.min_tokens", "a least number of tokens",
                    "use stopping.ignore_eos with max_tokens");
  }
  COMOE_RETURN_IF_ERROR(CheckStopStrings(stopping));
  if (stopping.stop_token_ids_size() > kMaxStopTokenIds) {
    return absl::InvalidArgumentError(absl::StrCat("stopping.stop_token_ids has ",
                                                   stopping.stop_token_ids_size(), " ids: ", kMaxStopTokenIds,
                                                   " at most"));
  }
  COMOE_ASSIGN_OR_RETURN(stop.stop_token_ids,
                         ToTokenIds("stopping.stop_token_ids", stopping.stop_token_ids(), model.vocab_size));
  stop.ignore_eos = stopping.ignore_eos();
  spec->output.include_stop_in_output = stopping.include_stop_in_output();
  if (stopping.has_time_limit()) {
    const google::protobuf::Duration& limit = stopping.time_limit();
    if (limit.seconds() < 0 || limit.nanos() < 0 || (limit.seconds() == 0 && limit.nanos() == 0)) {
      return absl::InvalidArgumentError("stopping.time_limit must be above 0");
    }
    return NotBuilt("stopping.time_limit", "a time limit", "set a deadline on the RPC");
  }
  return absl::OkStatus();
}

absl::Status CheckUnbuiltOutput(const v1::OutputOptions& output) {
  if (output.logprobs() > kMaxLogprobs) {
    return OutOfRange("output.logprobs", output.logprobs(), "[0, 20]");
  }
  if (output.prompt_logprobs() > kMaxLogprobs) {
    return OutOfRange("output.prompt_logprobs", output.prompt_logprobs(), "[0, 20]");
  }
  if (output.return_logprobs() || output.logprobs() > 0) {
    return NotBuilt("output.return_logprobs", "returning log-probabilities", "leave logprobs at 0");
  }
  if (output.prompt_logprobs() > 0) {
    return NotBuilt("output.prompt_logprobs", "returning log-probabilities of the prompt", "leave it 0");
  }
  if (output.echo_prompt()) {
    return NotBuilt("output.echo_prompt", "echoing the prompt", "put it before the text yourself");
  }
  if (output.truncate_prompt_tokens() > 0) {
    return NotBuilt("output.truncate_prompt_tokens", "truncating a prompt",
                    "use Tokenize and send the ids that shall stay");
  }
  if (output.prefill_only()) {
    return NotBuilt("output.prefill_only", "running a prompt without generating", "use max_tokens 1");
  }
  return absl::OkStatus();
}

absl::Status ParseOutput(const v1::OutputOptions& output, const RequestBounds& bounds, GenerationSpec* spec) {
  COMOE_RETURN_IF_ERROR(CheckUnbuiltOutput(output));
  if ((output.return_text() || output.return_token_pieces()) && !bounds.has_tokenizer) {
    return absl::FailedPreconditionError("output: the model has no tokenizer, so there is no text");
  }
  spec->output.return_token_pieces = output.return_token_pieces();
  if (output.has_return_token_ids()) {
    spec->output.return_token_ids = output.return_token_ids();
  }
  spec->output.return_text = output.has_return_text() ? output.return_text() : bounds.has_tokenizer;
  if (output.has_skip_special_tokens()) {
    spec->output.skip_special_tokens = output.skip_special_tokens();
  }
  if (output.has_add_special_tokens()) {
    spec->add_special_tokens = output.add_special_tokens();
  }
  return absl::OkStatus();
}

// Whole features that are not there, after the ranges of their fields.
absl::Status CheckUnbuiltFeatures(const v1::GenerateRequest& request) {
  if (request.priority() < -100 || request.priority() > 100) {
    return OutOfRange("priority", request.priority(), "[-100, 100]");
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has ", request.cache_salt().size(),
                                                   " bytes: ", kMaxCacheSaltBytes, " at most"));
  }
  if (request.has_structured()) {
    if (request.structured().constraint_case() == v1::StructuredOutput::CONSTRAINT_NOT_SET) {
      return absl::InvalidArgumentError("structured names no constraint");
    }
    return NotBuilt("structured", "structured output", "leave it absent for free text");
  }
  if (!request.lora_adapter().empty()) {
    return NotBuilt("lora_adapter", "LoRA", "leave it empty for the model as it is");
  }
  if (request.priority() != 0) {
    return NotBuilt("priority", "a request priority", "leave it 0: requests run in order of arrival");
  }
  if (!request.cache_salt().empty()) {
    return NotBuilt("cache_salt", "a prefix cache", "leave it empty: nothing is shared between requests");
  }
  return absl::OkStatus();
}

std::string MakeRequestId() {
  const std::uint64_t a = base::DrawSeed();
  const std::uint64_t b = base::DrawSeed();
  // As a UUID of version 4 is written.
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", a >> 32, (a >> 16) & 0xFFFF, a & 0xFFF,
                         0x8000 | ((b >> 48) & 0x3FFF), b & 0xFFFFFFFFFFFF);
}

}  // namespace

absl::Status CheckModel(absl::string_view name, const api::ModelInfo& model) {
  if (name.empty() || name == absl::string_view(model.name)) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("model '", name.substr(0, 128), "' is not served here; '", model.name, "' is"));
}

absl::Status CheckTextBytes(absl::string_view field, absl::string_view text, const Limits& limits) {
  if (text.size() > static_cast<std::size_t>(limits.max_prompt_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", text.size(), " bytes: ", limits.max_prompt_bytes, " at most"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<base::TokenId>> ToTokenIds(
    absl::string_view field, const google::protobuf::RepeatedField<std::uint32_t>& ids,
    std::int32_t vocab_size) {
  std::vector<base::TokenId> out;
  out.reserve(static_cast<std::size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    if (ids.Get(i) >= static_cast<std::uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is ", ids.Get(i), ": the vocabulary has ", vocab_size, " tokens"));
    }
    out.push_back(static_cast<base::TokenId>(ids.Get(i)));
  }
  return out;
}

absl::Status CheckRequestId(absl::string_view field, absl::string_view id) {
  constexpr absl::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
  if (id.empty() || id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", id.size(), " bytes: 1 to ", kMaxRequestIdBytes));
  }
  if (id.find_first_not_of(kAllowed) != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, " holds a character outside [A-Za-z0-9._:-]"));
  }
  return absl::OkStatus();
}

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
      return absl::InvalidArgumentError("prompt is missing: text or tokens is required");
    case v1::GenerateRequest::kText:
      if (!bounds.has_tokenizer) {
        return absl::FailedPreconditionError("text: the model has no tokenizer; send tokens");
      }
      COMOE_RETURN_IF_ERROR(CheckTextBytes("text", request.text(), bounds.limits));
      spec.prompt_is_text = true;
      break;
    case v1::GenerateRequest::kTokens:
      break;
  }
  COMOE_ASSIGN_OR_RETURN(spec.request.sampling, ParseSampling(request.sampling(), bounds.model));
  COMOE_RETURN_IF_ERROR(ParseStopping(request.stopping(), bounds.model, &spec));
  COMOE_RETURN_IF_ERROR(ParseOutput(request.output(), bounds, &spec));
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
  const v1::StreamOptions& stream = request.stream();
  if (stream.has_min_chunk_tokens() && stream.min_chunk_tokens() == 0) {
    return absl::InvalidArgumentError("stream.min_chunk_tokens is 0: it is at least 1");
  }
  if (stream.has_min_chunk_tokens() && stream.min_chunk_tokens() > 1) {
    return NotBuilt("stream.min_chunk_tokens", "gathering tokens", "leave it absent or 1");
  }
  const google::protobuf::Duration& delay = stream.max_chunk_delay();
  if (delay.seconds() < 0 || delay.nanos() < 0) {
    return absl::InvalidArgumentError("stream.max_chunk_delay is below 0");
  }
  if (delay.seconds() > 0 || delay.nanos() > 0) {
    return NotBuilt("stream.max_chunk_delay", "gathering tokens", "leave it absent or 0");
  }
  COMOE_ASSIGN_OR_RETURN(GenerationSpec spec, ParseGenerateRequest(request.request(), bounds));
  if (stream.has_include_usage_every_chunk()) {
    spec.output.include_usage_every_chunk = stream.include_usage_every_chunk();
  }
  spec.output.include_timing = stream.include_timing();
  return spec;
}

absl::Status SetPrompt(std::vector<base::TokenId> prompt, const RequestBounds& bounds, GenerationSpec* spec) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length == 0) {
    return absl::InvalidArgumentError("the prompt is empty: it needs at least one token");
  }
  if (length >= bounds.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", length, " tokens: at most ",
                                                   bounds.max_positions - 1,
                                                   " fit, and one position is left for the completion"));
  }
  spec->request.prompt = std::move(prompt);
  if (!spec->max_tokens_given) {
    // Where less is left of the context, the scheduler ends it there and says so.
    spec->request.stop.max_tokens = bounds.limits.default_max_tokens;
  }
  return absl::OkStatus();
}

std::vector<std::string> Features(bool has_tokenizer) {
  std::vector<std::string> features = {"tokens", "greedy",         "temperature", "top_p",
                                       "top_k",  "min_p",          "seed",        "max_tokens",
                                       "abort",  "stop_token_ids", "ignore_eos",  "streaming"};
  if (has_tokenizer) {
    features.insert(features.begin(), {"text", "tokenize", "detokenize"});
  }
  return features;
}

}  // namespace comoe::server
