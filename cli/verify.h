// The checks of `comoe verify`, one file of references each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "cli/offline.h"

namespace comoe::cli {

struct Check {
  std::string name;  // the file, and what of it
  bool passed = false;
  std::string detail;  // one line: what was measured against which bound
};

// What the checks of a model share.
struct VerifyContext {
  std::string directory;
  OfflineSequence& sequence;
  api::Engine& engine;
  bool quiet = false;
};

// golden.json of a checkpoint with golden.safetensors: relative error of the logits of each prompt (below
// 1e-4), greedy tokens equal.
absl::StatusOr<std::vector<Check>> VerifyLogits(const VerifyContext& context);
// golden_greedy.json: greedy continuations equal; where the reference's own margin between the two best
// logits is below 1e-3, a difference is reported but does not fail.
absl::StatusOr<std::vector<Check>> VerifyGreedy(const VerifyContext& context);
// golden_nll.json: mean negative log-likelihood within 1e-3.
absl::StatusOr<std::vector<Check>> VerifyNll(const VerifyContext& context);

// Routing of the sequence that runs, one entry per MoE layer and row.
class RoutingLog {
 public:
  void Observe(const api::RoutingObservation& observation);
  void Clear();
  // Rows seen for `layer`, [rows, k].
  const std::vector<std::int32_t>& experts(std::int32_t layer) const;

 private:
  std::vector<std::vector<std::int32_t>> layers_;
};

// routing_trace.npz: routed sets agree in at least 99.9 % of layer-rows, over the first `max_sequences`
// sequences (0: all).
absl::StatusOr<std::vector<Check>> VerifyRouting(const VerifyContext& context, RoutingLog& log,
                                                 std::int64_t max_sequences);

// Mean negative log-likelihood of tokens 1.. of each sequence. A progress line per sequence.
absl::StatusOr<double> MeanNll(const VerifyContext& context,
                               const std::vector<std::vector<base::TokenId>>& sequences,
                               std::int64_t* tokens);

struct NllFile {
  std::vector<std::vector<base::TokenId>> ids;
  double reference = 0.0;
  bool has_reference = false;
};
// The form of golden_nll.json: {"...nll": number, "ids": [[id, ...], ...]}. Ids are checked against the
// vocabulary.
absl::StatusOr<NllFile> ReadNllFile(const std::string& path, std::int32_t vocab_size);

}  // namespace comoe::cli
