// What the checks of cuda_tokens_check share: engines of one model under several settings, prompts, and runs
// whose steps do not depend on what was drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "engine/api/engine.h"
#include "nlohmann/json.hpp"

namespace comoe::testing {

struct CheckOptions {
  std::string model;            // a checkpoint folder
  std::string device = "cuda";  // cpu | emulated | cuda | fake: the engine's CUDA code over a fake plugin
  std::string plugin;           // "": as --cuda-plugin
  std::vector<std::string> activations = {"f32", "bf16"};
  std::vector<std::string> policies = {"naive", "static", "lru", "simple", "hub", "hub throughput"};
  std::vector<double> capacities = {0.125, 0.25, 0.5, 1.0};
  std::vector<std::int64_t> batches = {1, 4, 16};
  std::vector<std::string> lanes = {"off", "on"};
  std::int64_t decodes = 8;  // tokens drawn of a sequence
  std::int64_t threads = 0;  // of the host; 0: all
};

constexpr std::int64_t kMaxRows = 192;      // of a step
constexpr std::int64_t kMaxSequences = 17;  // the most of batches, and one

// An engine's settings apart from CheckOptions.
struct Setting {
  std::string policy = "resident";  // "hub throughput": the hub in its other mode
  double capacity = 1.0;            // of the experts on the device
  std::string lane = "off";
  std::string activations = "f32";
};

absl::StatusOr<std::unique_ptr<cli::EngineBundle>> Load(const CheckOptions& options, const Setting& setting);

// Texts of the model's golden_nll.json where it has one, else random ids; of different lengths, `most` at
// most.
absl::StatusOr<std::vector<std::vector<base::TokenId>>> Prompts(const CheckOptions& options,
                                                                const api::ModelInfo& info,
                                                                std::int64_t count, std::int64_t most);

// One span of a step, of sequence number `sequence` from 0.
struct Piece {
  std::int64_t sequence = 0;
  std::int64_t position = 0;
  std::vector<base::TokenId> tokens;
  api::LogitsMode logits = api::LogitsMode::kNone;  // and they are handed out
  std::optional<api::SamplingParams> sample;
};

// Runs steps of sequences that share the engine's blocks evenly. Not thread-safe; the engine outlives it.
class Stepper {
 public:
  Stepper(api::Engine& engine, std::int64_t num_sequences);
  // Results in the order of `pieces`. Any span that fails is an error.
  absl::StatusOr<std::vector<api::SpanResult>> Step(const std::vector<Piece>& pieces);

 private:
  api::Engine& engine_;
  std::int64_t num_sequences_;
  std::uint64_t next_step_ = 0;
};

// What a run drew: tokens of each sequence, and the logits of each draw, [draws, V].
struct Drawn {
  std::vector<std::vector<base::TokenId>> tokens;
  std::vector<std::vector<float>> logits;
};

// All prompts, in chunks beside the decodes of those before them, then decodes alone. Every other sequence is
// drawn greedily, every other with a seed; `parity` swaps them.
absl::StatusOr<Drawn> RunFree(api::Engine& engine, const std::vector<std::vector<base::TokenId>>& prompts,
                              std::int64_t decodes, int parity);

// How two rows of logits, or runs, differ. Logits count up to a sequence's first other token: what follows it
// has another history.
struct Difference {
  std::int64_t tokens = 0;        // compared
  std::int64_t other_tokens = 0;  // of them
  std::int64_t rows = 0;          // of logits, compared
  std::int64_t other_rows = 0;    // that are not the same to the bit
  double largest = 0.0;           // difference of two logits

  bool none() const { return other_tokens == 0 && other_rows == 0; }
  void Add(const Difference& other);
  // One row each; their highest logits count as tokens.
  void AddRow(absl::Span<const float> want, absl::Span<const float> got);
  nlohmann::json Json() const;
};
Difference Compare(const Drawn& want, const Drawn& got, std::int32_t vocab);

// Every policy and capacity against `resident`. `passed`: lane off, nothing differs.
absl::StatusOr<nlohmann::json> CheckPolicies(const CheckOptions& options, bool* passed);

// A sequence alone, in batches, and in other chunks, with experts resident. `passed`: batches that no kernel
// tells apart give the same bits: of up to 8 rows on a GPU, all of them elsewhere.
absl::StatusOr<nlohmann::json> MeasureBatchDependence(const CheckOptions& options, bool* passed);

}  // namespace comoe::testing
