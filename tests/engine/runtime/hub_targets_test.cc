// What the routing hub promises beside copying everything, with a trained model on the emulated accelerator's
// virtual clock: bytes, tokens per second, time to first token. Look-ahead is in its time. The rest of its
// targets hold in replay (tests/scheduler/routing/hub_targets_test.cc), which takes less time.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "cli/offload_run.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

std::string Shared() {
  const char* shared = std::getenv("COMOE_SHARED");
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return shared != nullptr ? shared : absl::StrCat(root != nullptr ? root : ".", "/../shared");
}

class HubOnEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Model() + "/routing_trace.npz")) {
      std::printf("NOT CHECKED: ../shared is not here\n");
      GTEST_SKIP() << "no model at " << Model();
    }
  }
  static std::string Model() { return Shared() + "/models/moe-64x2"; }

  // The forced ids of the model's trace; a copy takes four computes, any other kernel a tenth of one.
  static cli::OffloadRun Run(const std::string& policy, std::int64_t batch, std::int64_t steps) {
    cli::EngineOptions options;
    options.model = Model();
    options.device = "emulated";
    options.quiet = true;
    options.policy = policy;
    options.expert_cache_fraction = 0.25;
    options.copy_computes = 4.0;
    options.max_sequences = batch + 1;
    cli::OffloadRunOptions run;
    run.batch = batch;
    run.steps = steps;
    run.warmup_steps = 0;
    run.prompt = 64;
    options.max_batch_tokens = run.prompt;
    const auto bundle = cli::LoadEngine(options);
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    const auto texts = cli::ReadForcedIds(Model() + "/routing_trace.npz", 8192);
    EXPECT_TRUE(texts.ok()) << texts.status();
    const auto done = cli::RunOffload((*bundle)->engine(), *texts, run,
                                      [](std::uint64_t /*done*/, std::uint64_t /*total*/) {});
    EXPECT_TRUE(done.ok()) << done.status();
    return *done;
  }
  static double Bytes(const cli::OffloadRun& run) {
    double bytes = 0.0;
    for (const auto& direction : run.totals.copies.values) {
      for (const auto b : direction.bytes.values) {
        bytes += static_cast<double>(b);
      }
    }
    return bytes;
  }
};

TEST_F(HubOnEngineTest, MovesFewerBytesFasterAndAnswersSooner) {
  struct Target {
    std::int64_t batch, steps;
    double bytes, rate;
  };
  for (const Target& target : {Target{1, 3000, 0.35, 2.0}, Target{8, 500, 0.60, 1.8}}) {
    const cli::OffloadRun naive = Run("naive", target.batch, target.steps);
    const cli::OffloadRun hub = Run("hub", target.batch, target.steps);
    const double bytes = Bytes(hub) / Bytes(naive);
    const double rate = naive.totals.wall / hub.totals.wall;
    const double cold = hub.first_token_cold / naive.first_token_cold;
    const double warm = hub.first_token_warm / naive.first_token_warm;
    std::printf(
        "batch %d: %.4f of naive's bytes, %.3f times its tokens/s, first token of 64: cold %.3f, warm "
        "%.3f of naive's\n",
        static_cast<int>(target.batch), bytes, rate, cold, warm);
    EXPECT_LE(bytes, target.bytes);
    EXPECT_GE(rate, target.rate);
    EXPECT_LE(cold, 1.0);
    EXPECT_LE(warm, 0.75);
    EXPECT_EQ(naive.last_logits, hub.last_logits);
  }
}

}  // namespace
}  // namespace comoe
