#include "server/messages.h"

#include <chrono>
#include <string>

#include "server/validation.h"

namespace comoe::server {
namespace {

void AddTop(const api::LogprobRow& row, google::protobuf::RepeatedPtrField<v1::TokenLogprob>* top) {
  for (const api::TokenLogprob& alternative : row.top) {
    v1::TokenLogprob* entry = top->Add();
    entry->set_token_id(ToUint32(alternative.id));
    entry->set_logprob(alternative.logprob);
  }
}

}  // namespace

void ToMessage(absl::Duration duration, google::protobuf::Duration* message) {
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    duration = absl::ZeroDuration();
  }
  absl::Duration rest;
  message->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  message->set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void ToMessage(absl::Time time, google::protobuf::Timestamp* message) {
  google::protobuf::Duration since_epoch;
  ToMessage(time - absl::UnixEpoch(), &since_epoch);
  message->set_seconds(since_epoch.seconds());
  message->set_nanos(since_epoch.nanos());
}

v1::FinishReason ToMessage(batching::FinishReason reason) {
  using Reason = batching::FinishReason;
  switch (reason) {
    case Reason::kStopEos:
      return v1::FINISH_REASON_STOP_EOS;
    case Reason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case Reason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case Reason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
    case Reason::kContextLength:
      return v1::FINISH_REASON_CONTEXT_LENGTH;
    case Reason::kTimeLimit:
      return v1::FINISH_REASON_TIME_LIMIT;
    case Reason::kAborted:
    case Reason::kDeadline:
      return v1::FINISH_REASON_ABORTED;
    case Reason::kDraining:
      return v1::FINISH_REASON_DRAINING;
    case Reason::kError:
      break;
  }
  return v1::FINISH_REASON_ERROR;
}

void ToMessage(const batching::Usage& usage, v1::Usage* message) {
  message->set_prompt_tokens(ToUint32(usage.prompt_tokens));
  message->set_completion_tokens(ToUint32(usage.completion_tokens));
  message->set_cached_prompt_tokens(ToUint32(usage.cached_prompt_tokens));
  message->set_total_tokens(ToUint32(usage.prompt_tokens + usage.completion_tokens));
}

void ToMessage(const batching::RequestTiming& timing, v1::Timing* message) {
  ToMessage(timing.queue, message->mutable_queue());
  ToMessage(timing.prefill, message->mutable_prefill());
  ToMessage(timing.decode, message->mutable_decode());
  ToMessage(timing.time_to_first_token, message->mutable_time_to_first_token());
  message->set_preemptions(ToUint32(timing.preemptions));
}

void ToMessage(const api::LogprobRow& row, v1::LogprobEntry* message) {
  message->set_logprob(row.logprob);
  AddTop(row, message->mutable_top());
}

void ToMessage(absl::Span<const base::TokenId> prompt, absl::Span<const api::LogprobRow> scores,
               google::protobuf::RepeatedPtrField<v1::PromptLogprobEntry>* message) {
  for (std::size_t i = 0; i < prompt.size() && i <= scores.size(); ++i) {
    v1::PromptLogprobEntry* entry = message->Add();
    entry->set_token_id(ToUint32(prompt[i]));
    if (i > 0) {
      entry->set_logprob(scores[i - 1].logprob);
      AddTop(scores[i - 1], entry->mutable_top());
    }
  }
}

void ToMessage(const Backend& backend, v1::ModelInfo* message) {
  const api::ModelInfo& model = backend.model;
  const bool has_tokenizer = backend.tokenizer != nullptr;
  message->set_name(model.name);
  message->set_architecture(model.architecture);
  message->set_weight_dtype(model.weight_dtype);
  message->set_context_length(ToUint64(model.context_length));
  message->set_max_positions(ToUint64(backend.max_positions));
  message->set_max_input_tokens(ToUint64(backend.max_positions - 1));
  message->set_vocab_size(ToUint32(model.vocab_size));
  for (const base::TokenId id : model.eos_token_ids) {
    message->add_eos_token_ids(ToUint32(id));
  }
  if (model.bos_token_id >= 0) {
    message->set_bos_token_id(ToUint32(model.bos_token_id));
  }
  message->set_num_layers(ToUint32(model.num_layers));
  message->set_num_moe_layers(ToUint32(model.num_moe_layers));
  message->set_num_experts(ToUint32(model.num_experts));
  message->set_num_experts_per_token(ToUint32(model.num_experts_per_token));
  message->set_total_parameters(model.total_parameters);
  message->set_active_parameters(model.active_parameters);
  message->set_expert_bytes(model.expert_bytes);
  message->set_all_expert_bytes(model.all_expert_bytes);
  message->set_resident_bytes(model.resident_bytes);
  v1::DefaultSampling* sampling = message->mutable_default_sampling();
  sampling->set_temperature(model.default_sampling.temperature);
  sampling->set_top_p(model.default_sampling.top_p);
  sampling->set_top_k(ToUint32(model.default_sampling.top_k));
  sampling->set_min_p(model.default_sampling.min_p);
  sampling->set_repetition_penalty(model.default_sampling.repetition_penalty);
  for (std::string& feature : Features(has_tokenizer)) {
    message->add_features(std::move(feature));
  }
  message->set_has_tokenizer(has_tokenizer);
}

absl::Duration MonotonicNow() {
  return absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace comoe::server
