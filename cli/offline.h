// Runs sequences through an engine one after another, without a scheduler: for generate, verify and eval.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"

namespace comoe::cli {

// The engine's only sequence: it uses the engine's blocks from the first on. Not thread-safe.
class OfflineSequence {
 public:
  explicit OfflineSequence(api::Engine& engine);

  // Forgets everything: the next token is at position 0.
  void Reset() {
    tokens_.clear();
    num_prompt_.reset();
  }
  std::int64_t position() const { return static_cast<std::int64_t>(tokens_.size()); }

  // Appends tokens in chunks of at most max_rows rows. OUT_OF_RANGE when they do not fit.
  absl::Status Append(absl::Span<const base::TokenId> tokens);
  // The same, and hands over the logits of every one of them: [V] at a time, positions ascending.
  using LogitsSink = absl::FunctionRef<void(std::int64_t position, absl::Span<const float> logits)>;
  absl::Status AppendWithLogits(absl::Span<const base::TokenId> tokens, LogitsSink sink);
  // The same, and draws the token that follows the last. What was appended up to the first draw is the
  // prompt, to the parameters that tell prompt and output apart.
  absl::StatusOr<api::SpanResult> AppendAndSample(absl::Span<const base::TokenId> tokens,
                                                  const api::SamplingParams& sampling);

 private:
  absl::StatusOr<api::SpanResult> Run(absl::Span<const base::TokenId> tokens, api::LogitsMode mode,
                                      bool return_logits, const api::SamplingParams* sampling);

  api::Engine& engine_;
  std::vector<api::GroupState> groups_;
  std::vector<base::TokenId> tokens_;       // those in the state
  std::optional<std::int64_t> num_prompt_;  // of them; none before the first draw
  std::uint64_t next_step_ = 0;
};

// -log softmax(logits)[token], in double.
double NegativeLogLikelihood(absl::Span<const float> logits, base::TokenId token);

}  // namespace comoe::cli
