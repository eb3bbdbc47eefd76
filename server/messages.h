// Values of the scheduler and the engine as messages of the API.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comoe/v1/inference.pb.h"
#include "comoe/v1/model.pb.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "scheduler/batching/request.h"
#include "server/serving_state.h"

namespace comoe::server {

// A duration below zero or infinite becomes zero: it was never measured.
void ToMessage(absl::Duration duration, google::protobuf::Duration* message);
void ToMessage(absl::Time time, google::protobuf::Timestamp* message);
v1::FinishReason ToMessage(batching::FinishReason reason);
void ToMessage(const batching::Usage& usage, v1::Usage* message);
void ToMessage(const batching::RequestTiming& timing, v1::Timing* message);
void ToMessage(const api::LogprobRow& row, v1::LogprobEntry* message);
// One entry for each prompt token that is known: the first has no log-probability, the others have
// `scores`'.
void ToMessage(absl::Span<const base::TokenId> prompt, absl::Span<const api::LogprobRow> scores,
               google::protobuf::RepeatedPtrField<v1::PromptLogprobEntry>* message);
void ToMessage(const Backend& backend, v1::ModelInfo* message);

// Token counts and ids are never negative; a message's are unsigned.
inline std::uint32_t ToUint32(std::int64_t value) {
  return static_cast<std::uint32_t>(value < 0 ? 0 : value);
}
inline std::uint64_t ToUint64(std::int64_t value) {
  return static_cast<std::uint64_t>(value < 0 ? 0 : value);
}

// Time by a clock that is never set back.
absl::Duration MonotonicNow();

}  // namespace comoe::server
