// What one step of the engine shall compute, and what came of it. Plain data, passed by value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
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

inline constexpr std::int32_t kMaxTopLogprobs = 20;

// What a draw depends on besides the logits and the parameters.
struct SampleContext {
  // Prompt, then output so far, up to the span's last row. Needed if the parameters penalise, else empty.
  std::vector<base::TokenId> tokens;
  std::int64_t num_prompt = 0;  // of `tokens`
  // Cannot be drawn: what would end a completion that is too short yet. Ignored where nothing else is left.
  std::vector<base::TokenId> masked;
};

struct TokenLogprob {
  base::TokenId id = 0;
  // Natural logarithm, under the unmodified logits: no bias, penalty, temperature, filter.
  float logprob = 0.0F;
};

// Of one token that was drawn or given.
struct LogprobRow {
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;  // as many as were asked for, the likeliest first, the lower id among equals
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
  SampleContext context;                 // of that draw
  // SpanResult::logprobs, with that many alternatives, at most kMaxTopLogprobs; -1: none, and nothing
  // computed.
  std::int32_t top_logprobs = -1;
  // score[i]'s log-probability under row i's logits, for prompts; needs kAll, at most one for each row.
  std::vector<base::TokenId> score;
  std::int32_t score_top_logprobs = 0;  // alternatives beside each of them, at most kMaxTopLogprobs
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
  // Not OK: this span alone could not be computed (an expert that its rows need could not be had); nothing
  // else is set.
  absl::Status status;
  std::optional<base::TokenId> token;  // when sampling was asked for
  LogprobRow logprobs;                 // of `token`, if PlanSpan::top_logprobs asked for it
  std::vector<LogprobRow> scores;      // of PlanSpan::score
  std::vector<float> logits;           // [rows with logits, vocab], when return_logits
};

struct StepResult {
  base::StepId step;
  std::vector<SpanResult> spans;  // as in the plan
  absl::Duration elapsed;
  absl::Duration expert_stall;  // of it: the device waited for experts
};

}  // namespace comoe::api
