// What one step of the engine shall compute, and what came of it. Plain data, passed by value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/base/ids.h"

namespace comoe::api {

// Where a sequence's state of one cache group lies. Block i holds positions [i * block_tokens, ...); kNoBlock
// stands for blocks wholly before a window. A slot is used by recurrent groups only.
struct GroupState {
  std::vector<base::BlockId> blocks;
  std::int32_t slot = -1;
};

enum class LogitsMode {
  kNone,  // rows that only extend the state (a prompt's chunk, but the last)
  kLast,  // logits of the last row of the span
  kAll    // of every row: evaluation, prompt log-probabilities
};

// Consecutive rows of one sequence: a prefill chunk, or the one row of a decode.
struct PlanSpan {
  base::SequenceId sequence;
  std::int64_t start_position = 0;    // of the first row: positions before it are in the state already
  std::vector<base::TokenId> tokens;  // one row each, at least one
  std::vector<GroupState> groups;     // one for each of ModelInfo::cache_groups, in order
  LogitsMode logits = LogitsMode::kNone;
  bool return_logits = false;            // copy the logits out, beside sampling from the last
  std::optional<SamplingParams> sample;  // needs kLast or kAll: draws the token that follows the last row
};

struct StepPlan {
  base::StepId step;
  std::vector<PlanSpan> spans;

  std::int64_t num_rows() const {
    std::int64_t rows = 0;
    for (const PlanSpan& span : spans) {
      rows += static_cast<std::int64_t>(span.tokens.size());
    }
    return rows;
  }
};

struct SpanResult {
  base::SequenceId sequence;
  std::optional<base::TokenId> token;  // when sampling was asked for
  float logprob = 0.0F;                // of `token` under the unmodified logits
  std::vector<float> logits;           // [rows with logits, vocab], when return_logits
};

struct StepResult {
  base::StepId step;
  std::vector<SpanResult> spans;  // as in the plan
  absl::Duration elapsed;
};

}  // namespace comoe::api
