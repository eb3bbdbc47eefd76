// Real models: a request's tokens are the same alone, in a crowd, with its prompt cut into chunks, with a
// beginning that was in memory already, and after it lost its memory to others.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "tests/support/recording_metrics.h"
#include "tests/support/recording_observer.h"

namespace comoe::batching {
namespace {

constexpr int kRequests = 32;
constexpr std::int64_t kMaxPrompt = 70;
constexpr std::int64_t kMaxTokens = 24;

struct Setting {
  std::string name;
  std::int64_t max_sequences = 1;
  std::int64_t max_batch_tokens = 512;
  std::int64_t max_chunk_tokens = 0;
  bool reuse_prefixes = false;
  std::int64_t kv_positions = kRequests * (kMaxPrompt + kMaxTokens + 32);
};

std::string Folder(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return absl::StrCat(root != nullptr ? root : ".",
                      name.rfind("moe-", 0) == 0 ? "/models/" : "/tests/fixtures/checkpoints/", name);
}

std::unique_ptr<cli::EngineBundle> Load(const std::string& name, const Setting& setting,
                                        std::uint64_t bytes_per_position) {
  cli::EngineOptions options;
  options.model = Folder(name);
  options.threads = 2;
  options.quiet = true;
  options.max_batch_tokens = setting.max_batch_tokens;
  options.max_sequences = setting.max_sequences;
  if (bytes_per_position > 0) {
    options.kv_bytes = absl::StrCat(bytes_per_position * static_cast<std::uint64_t>(setting.kv_positions));
  }
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  return bundle.ok() ? *std::move(bundle) : nullptr;
}

// Every third request begins like the first ones.
Request MakeRequest(int index, std::int32_t vocab_size) {
  const auto draw = [index](std::uint64_t what) {
    return base::RandomBits(static_cast<std::uint64_t>(index) + 1, what);
  };
  Request request;
  request.id = absl::StrCat("request-", index);
  const std::int64_t length = 3 + static_cast<std::int64_t>(draw(0) % (kMaxPrompt - 2));
  for (std::int64_t i = 0; i < length; ++i) {
    const bool common = index % 3 == 0 && i < 40;
    const std::uint64_t bits = common ? base::RandomBits(99, static_cast<std::uint64_t>(i))
                                      : draw(10 + static_cast<std::uint64_t>(i));
    request.prompt.push_back(static_cast<base::TokenId>(bits % static_cast<std::uint64_t>(vocab_size)));
  }
  request.sampling.temperature = index % 2 == 0 ? 0.0F : 0.9F;
  request.sampling.frequency_penalty = index % 5 == 0 ? 0.5F : 0.0F;
  request.sampling.seed = draw(1);
  request.stop.max_tokens = 4 + static_cast<std::int64_t>(draw(2) % (kMaxTokens - 3));
  request.stop.ignore_eos = true;
  return request;
}

struct Outcome {
  std::vector<std::vector<base::TokenId>> tokens;
  double preemptions = 0;
  double cached = 0;
};

Outcome Generate(const std::string& model, const Setting& setting, std::uint64_t bytes_per_position) {
  Outcome outcome;
  const std::unique_ptr<cli::EngineBundle> bundle = Load(model, setting, bytes_per_position);
  if (bundle == nullptr) {
    return outcome;
  }
  testing::RecordingMetrics metrics;
  SchedulerOptions options;
  options.max_sequences = setting.max_sequences;
  options.max_batch_tokens = setting.max_batch_tokens;
  options.max_chunk_tokens = setting.max_chunk_tokens;
  options.reuse_prefixes = setting.reuse_prefixes;
  const std::unique_ptr<Scheduler> scheduler = MakeScheduler(bundle->engine(), options, metrics);
  std::vector<std::shared_ptr<testing::RecordingObserver>> observers;
  for (int i = 0; i < kRequests; ++i) {
    observers.push_back(std::make_shared<testing::RecordingObserver>());
    const absl::Status status =
        scheduler->Submit(MakeRequest(i, bundle->engine().model_info().vocab_size), observers.back());
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const auto& observer : observers) {
    const RequestOutcome end = observer->WaitFinished();
    EXPECT_EQ(end.reason, FinishReason::kMaxTokens) << end.status;
    outcome.tokens.push_back(observer->tokens());
  }
  scheduler->Stop(absl::InfiniteFuture());
  outcome.preemptions = metrics.Value("preemptions_total{kind=\"recompute\"}");
  outcome.cached = metrics.Value("prefix_cache_hit_tokens_total");
  return outcome;
}

class SameTokensTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SameTokensTest, WhateverElseRunsAndHoweverItIsCut) {
  const std::string model = GetParam();
  std::uint64_t bytes_per_position = 0;
  bool windows_only = true;
  {
    const std::unique_ptr<cli::EngineBundle> bundle = Load(model, {}, 0);
    ASSERT_NE(bundle, nullptr);
    for (const api::CacheGroup& group : bundle->engine().model_info().cache_groups) {
      bytes_per_position += group.bytes_per_block / static_cast<std::uint64_t>(group.block_tokens);
      windows_only = windows_only && group.kind == api::CacheGroup::Kind::kWindowKv;
    }
  }
  const Outcome alone = Generate(model, {"alone"}, bytes_per_position);
  const std::vector<Setting> settings = {
      {"a batch of 32", 32},
      {"a batch of 32, prefixes reused", 32, 512, 0, true},
      {"one after another, prefixes reused", 1, 512, 0, true},
      {"chunks of 5", 32, 64, 5, true},
      {"steps of 7 rows", 32, 7, 0, false},
      {"a third of the memory", 32, 512, 0, false, kRequests * kMaxPrompt / 3},
      {"a fifth of the memory, prefixes reused", 32, 48, 16, true, kRequests * kMaxPrompt / 5},
      {"hardly any memory", 32, 48, 16, true, 160},
  };
  double preemptions = 0;
  double cached = 0;
  for (const Setting& setting : settings) {
    const Outcome outcome = Generate(model, setting, bytes_per_position);
    ASSERT_EQ(outcome.tokens.size(), alone.tokens.size()) << setting.name;
    for (std::size_t i = 0; i < alone.tokens.size(); ++i) {
      EXPECT_EQ(outcome.tokens[i], alone.tokens[i]) << setting.name << ", request " << i;
    }
    // Who starts at the same time as another with the same beginning computes it for himself.
    EXPECT_TRUE(outcome.cached > 0 || !setting.reuse_prefixes || setting.max_sequences == kRequests)
        << setting.name;
    EXPECT_TRUE(outcome.cached == 0 || setting.reuse_prefixes) << setting.name;
    cached += outcome.cached;
    preemptions += outcome.preemptions;
  }
  EXPECT_GT(cached, 0);
  // Where every layer keeps a short window only, there is always room.
  EXPECT_TRUE(preemptions > 0 || windows_only) << "no setting made anybody lose its memory";
}

INSTANTIATE_TEST_SUITE_P(Models, SameTokensTest,
                         ::testing::Values("mixtral", "mixtral_swa8", "qwen2_moe", "qwen2_moe_swa_step2",
                                           "qwen3_moe", "olmoe", "moe-32x4-demo"));

}  // namespace
}  // namespace comoe::batching
