// `comoe bench scheduler`: what composing a step costs, without an engine behind it.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/batching/running_batch.h"

namespace comoe::cli {
namespace {

struct BenchSchedulerOptions {
  std::string sequences = "16,64,256";
  std::int64_t depth = 1000;
  std::int64_t steps = 500;
  bool json = false;
};

// Numbers of an engine: nothing runs.
class NoEngine final : public api::Engine {
 public:
  NoEngine(std::int64_t sequences, std::int64_t positions) {
    constexpr std::int32_t kBlockTokens = 16;
    info_.vocab_size = 32000;
    info_.context_length = positions;
    info_.cache_groups.resize(1);
    info_.cache_groups[0].block_tokens = kBlockTokens;
    capacity_.max_rows = sequences;
    capacity_.max_sequences = sequences;
    capacity_.max_positions = positions;
    capacity_.num_blocks = {static_cast<std::int32_t>(sequences * (positions / kBlockTokens + 1))};
  }
  const api::ModelInfo& model_info() const override { return info_; }
  const api::EngineCapacity& capacity() const override { return capacity_; }
  absl::StatusOr<api::StepResult> Step(const api::StepPlan& /*plan*/) override { return Nothing(); }
  absl::Status Truncate(base::SequenceId /*sequence*/, std::int64_t /*num_tokens*/) override {
    return Nothing();
  }
  absl::StatusOr<api::StateSnapshot> Snapshot(const std::vector<api::GroupState>& /*groups*/,
                                              std::int64_t /*num_tokens*/) override {
    return Nothing();
  }
  absl::Status Restore(const api::StateSnapshot& /*snapshot*/,
                       const std::vector<api::GroupState>& /*groups*/) override {
    return Nothing();
  }

 private:
  static absl::Status Nothing() { return absl::UnimplementedError("this engine has numbers only"); }
  api::ModelInfo info_;
  api::EngineCapacity capacity_;
};

struct Row {
  std::int64_t sequences = 0;
  double compose_us = 0;
  double account_us = 0;
};

// Decodes of that many sequences at that depth, one step after another; the medians.
Row Measure(std::int64_t sequences, const BenchSchedulerOptions& options) {
  const NoEngine engine(sequences, options.depth + options.steps + 2);
  const api::ConstantStepCosts costs;
  batching::RunningBatch batch(engine, {sequences, sequences, 0, true}, costs);
  for (std::int64_t i = 0; i < sequences; ++i) {
    auto sequence = std::make_unique<batching::Sequence>();
    sequence->id = base::SequenceId{static_cast<std::uint64_t>(i)};
    sequence->num_prompt = options.depth;
    for (std::int64_t t = 0; t < options.depth; ++t) {
      sequence->tokens.push_back(static_cast<base::TokenId>(
          base::RandomBits(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(t)) % 32000));
    }
    sequence->limit.max_new_tokens = options.steps + 1;
    batch.TryAdmit(sequence);
  }
  std::uint64_t step = 0;
  while (batch.InOrder().back()->num_pending() > 1) {
    batch.Account(batch.Compose(base::StepId{step++}).plan);
  }
  std::vector<double> compose;
  std::vector<double> account;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    for (batching::Sequence* sequence : batch.InOrder()) {
      if (sequence->num_pending() == 0) {
        sequence->tokens.push_back(static_cast<base::TokenId>(i));
      }
    }
    batching::ComposedStep composed;
    compose.push_back(Seconds([&] { composed = batch.Compose(base::StepId{step++}); }) * 1e6);
    account.push_back(Seconds([&] { batch.Account(composed.plan); }) * 1e6);
  }
  return {sequences, Median(std::move(compose)), Median(std::move(account))};
}

absl::Status BenchScheduler(const BenchSchedulerOptions& options) {
  if (options.depth < 2 || options.depth > 1'000'000 || options.steps < 1 || options.steps > 1'000'000) {
    return absl::InvalidArgumentError("--depth lies in [2, 1000000], --steps in [1, 1000000]");
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> sequences,
                         ParseList("--sequences", options.sequences, 1, 4096));
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    absl::PrintF("median of %d steps, decodes at depth %d\n%10s %14s %14s\n", options.steps, options.depth,
                 "sequences", "compose us", "account us");
  }
  for (const std::int64_t count : sequences) {
    const Row row = Measure(count, options);
    rows.push_back(
        {{"sequences", row.sequences}, {"compose_us", row.compose_us}, {"account_us", row.account_us}});
    if (!options.json) {
      absl::PrintF("%10d %14.1f %14.1f\n", row.sequences, row.compose_us, row.account_us);
    }
  }
  if (options.json) {
    absl::PrintF(
        "%s\n",
        nlohmann::json{{"depth", options.depth}, {"steps", options.steps}, {"results", rows}}.dump(2));
  }
  return absl::OkStatus();
}

}  // namespace

void AddBenchSchedulerCommand(CLI::App& bench, absl::Status& result) {
  CLI::App* command = bench.add_subcommand("scheduler", "what composing a step costs, without an engine");
  const auto options = std::make_shared<BenchSchedulerOptions>();
  command->add_option("--sequences", options->sequences, "numbers of running sequences")
      ->capture_default_str();
  command->add_option("--depth", options->depth, "tokens that each has already")->capture_default_str();
  command->add_option("--steps", options->steps, "measured")->capture_default_str();
  command->add_flag("--json", options->json, "for machines");
  command->callback([options, &result] { result = BenchScheduler(*options); });
}

}  // namespace comoe::cli
