// The engine over real (tiny) checkpoints: what must not matter does not matter, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offline.h"
#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

constexpr std::int64_t kPromptTokens = 45;

std::string FixtureFolder(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return std::string(root != nullptr ? root : ".") + "/tests/fixtures/checkpoints/" + name;
}

std::unique_ptr<cli::EngineBundle> Load(const std::string& name, int threads, const std::string& kernels,
                                        std::int64_t rows, const std::string& kv_dtype = "f32") {
  cli::EngineOptions options;
  options.model = FixtureFolder(name);
  options.threads = threads;
  options.kernels = kernels;
  options.kv_dtype = kv_dtype;
  options.quiet = true;
  options.max_batch_tokens = rows;
  options.max_sequences = 4;
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  return bundle.ok() ? *std::move(bundle) : nullptr;
}

std::vector<base::TokenId> RandomPrompt(std::uint64_t seed, std::int64_t tokens) {
  std::vector<base::TokenId> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<base::TokenId>(base::RandomBits(seed, static_cast<std::uint64_t>(i)) % 320));
  }
  return ids;
}

// Logits of every position of `prompt`, fed in chunks of `chunk` tokens.
std::vector<float> LogitsInChunks(api::Engine& engine, const std::vector<base::TokenId>& prompt,
                                  std::size_t chunk) {
  cli::OfflineSequence sequence(engine);
  std::vector<float> all;
  for (std::size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const absl::Status status =
        sequence.AppendWithLogits(absl::MakeConstSpan(prompt).subspan(begin, chunk),
                                  [&all](std::int64_t /*position*/, absl::Span<const float> logits) {
                                    all.insert(all.end(), logits.begin(), logits.end());
                                  });
    EXPECT_TRUE(status.ok()) << status;
  }
  return all;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class EngineFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineFixture, ChunksDoNotMatter) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load(GetParam(), 1, "best", 64);
  ASSERT_NE(bundle, nullptr);
  const std::vector<base::TokenId> prompt = RandomPrompt(1, kPromptTokens);
  const std::vector<float> whole = LogitsInChunks(bundle->engine(), prompt, 64);
  for (const std::size_t chunk :
       {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{16}, std::size_t{23}}) {
    EXPECT_TRUE(SameBits(whole, LogitsInChunks(bundle->engine(), prompt, chunk))) << "chunks of " << chunk;
  }
}

TEST_P(EngineFixture, ThreadsDoNotMatter) {
  const std::vector<base::TokenId> prompt = RandomPrompt(2, kPromptTokens);
  const std::unique_ptr<cli::EngineBundle> one = Load(GetParam(), 1, "best", 64);
  const std::unique_ptr<cli::EngineBundle> three = Load(GetParam(), 3, "best", 64);
  ASSERT_TRUE(one != nullptr && three != nullptr);
  EXPECT_TRUE(
      SameBits(LogitsInChunks(one->engine(), prompt, 64), LogitsInChunks(three->engine(), prompt, 64)));
}

// |a - b| / |b| over all logits.
double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST_P(EngineFixture, FastKernelsAgreeWithTheReference) {
  const std::vector<base::TokenId> prompt = RandomPrompt(3, kPromptTokens);
  const std::unique_ptr<cli::EngineBundle> fast = Load(GetParam(), 2, "best", 64);
  const std::unique_ptr<cli::EngineBundle> reference = Load(GetParam(), 1, "ref", 64);
  ASSERT_TRUE(fast != nullptr && reference != nullptr);
  const std::vector<float> ours = LogitsInChunks(fast->engine(), prompt, 64);
  const std::vector<float> judge = LogitsInChunks(reference->engine(), prompt, 64);
  EXPECT_LT(RelativeDifference(ours, judge), 1e-5);
}

// Keys and values as halves: off by 2^-12 relatively on average, and so are the logits, as long as no expert
// flips; the same bits for every chunk and thread count; half the bytes a block.
TEST_P(EngineFixture, HalfKeysAndValues) {
  const std::vector<base::TokenId> prompt = RandomPrompt(4, kPromptTokens);
  const std::unique_ptr<cli::EngineBundle> exact = Load(GetParam(), 1, "best", 64);
  const std::unique_ptr<cli::EngineBundle> half = Load(GetParam(), 1, "best", 64, "f16");
  const std::unique_ptr<cli::EngineBundle> threads = Load(GetParam(), 3, "best", 64, "f16");
  ASSERT_TRUE(exact != nullptr && half != nullptr && threads != nullptr);
  EXPECT_EQ(2 * half->engine().model_info().cache_groups[0].bytes_per_block,
            exact->engine().model_info().cache_groups[0].bytes_per_block);
  EXPECT_EQ(half->engine().capacity().num_blocks, exact->engine().capacity().num_blocks);
  const std::vector<float> ours = LogitsInChunks(half->engine(), prompt, 64);
  const double difference = RelativeDifference(ours, LogitsInChunks(exact->engine(), prompt, 64));
  EXPECT_GT(difference, 0.0);
  EXPECT_LT(difference, 1e-3);
  EXPECT_TRUE(SameBits(ours, LogitsInChunks(half->engine(), prompt, 1)));
  EXPECT_TRUE(SameBits(ours, LogitsInChunks(threads->engine(), prompt, 23)));
}

// Three sequences in one step, at different positions and in scattered blocks, give what each gives alone.
TEST_P(EngineFixture, NeighboursDoNotMatter) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load(GetParam(), 2, "best", 64);
  ASSERT_NE(bundle, nullptr);
  api::Engine& engine = bundle->engine();
  const auto vocab = static_cast<std::size_t>(engine.model_info().vocab_size);
  std::vector<std::vector<base::TokenId>> prompts;
  std::vector<std::vector<float>> alone;
  for (std::uint64_t s = 0; s < 3; ++s) {
    prompts.push_back(RandomPrompt(10 + s, 20 + static_cast<std::int64_t>(s) * 5));
    alone.push_back(LogitsInChunks(engine, prompts.back(), 64));
  }
  api::StepPlan history;
  api::StepPlan together;
  for (std::size_t s = 0; s < 3; ++s) {
    api::PlanSpan span;
    span.sequence = {s};
    // Every third block, from the pool's end, so that tables differ from those of the runs alone.
    for (const std::int32_t blocks : engine.capacity().num_blocks) {
      api::GroupState& state = span.groups.emplace_back();
      for (std::int32_t i = 0; i < 2; ++i) {
        state.blocks.push_back({blocks - 1 - static_cast<std::int32_t>(s) - 3 * i});
      }
    }
    const std::size_t split = 10 + s * 3;
    span.tokens.assign(prompts[s].begin(), prompts[s].begin() + static_cast<std::ptrdiff_t>(split));
    history.spans.push_back(span);
    span.start_position = static_cast<std::int64_t>(split);
    span.tokens.assign(prompts[s].begin() + static_cast<std::ptrdiff_t>(split), prompts[s].end());
    span.logits = api::LogitsMode::kAll;
    span.return_logits = true;
    together.spans.push_back(span);
  }
  ASSERT_TRUE(engine.Step(history).ok());
  absl::StatusOr<api::StepResult> result = engine.Step(together);
  ASSERT_TRUE(result.ok()) << result.status();
  for (std::size_t s = 0; s < 3; ++s) {
    const auto first =
        static_cast<std::ptrdiff_t>(static_cast<std::size_t>(together.spans[s].start_position) * vocab);
    EXPECT_TRUE(
        SameBits(std::vector<float>(alone[s].begin() + first, alone[s].end()), result->spans[s].logits))
        << s;
  }
}

TEST_P(EngineFixture, SnapshotsMoveASequence) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load(GetParam(), 1, "best", 64);
  ASSERT_NE(bundle, nullptr);
  api::Engine& engine = bundle->engine();
  const std::vector<base::TokenId> prompt = RandomPrompt(20, 30);
  const auto vocab = static_cast<std::size_t>(engine.model_info().vocab_size);
  const std::vector<float> whole = LogitsInChunks(engine, prompt, 64);
  // The run above left the state of all 30 positions in blocks 0 and 1; keep 25 of them, elsewhere.
  std::vector<api::GroupState> from(engine.capacity().num_blocks.size(), {{{0}, {1}}});
  std::vector<api::GroupState> to(engine.capacity().num_blocks.size(), {{{7}, {5}}});
  absl::StatusOr<api::StateSnapshot> snapshot = engine.Snapshot(from, 25);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  LogitsInChunks(engine, RandomPrompt(21, 40), 64);  // overwrites blocks 0, 1 and 2
  ASSERT_TRUE(engine.Restore(*snapshot, to).ok());
  api::StepPlan plan;
  api::PlanSpan& span = plan.spans.emplace_back();
  span.start_position = 25;
  span.tokens.assign(prompt.begin() + 25, prompt.end());
  span.groups = to;
  span.logits = api::LogitsMode::kAll;
  span.return_logits = true;
  absl::StatusOr<api::StepResult> result = engine.Step(plan);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(SameBits({whole.begin() + static_cast<std::ptrdiff_t>(25 * vocab), whole.end()},
                       result->spans[0].logits));
}

INSTANTIATE_TEST_SUITE_P(Architectures, EngineFixture,
                         ::testing::Values("mixtral", "mixtral_swa8", "mixtral_f16", "qwen2_moe",
                                           "qwen2_moe_swa_step2", "qwen3_moe", "qwen3_moe_yarn_legacy",
                                           "olmoe", "olmoe_clip_f32"));

TEST(Engine, RefusesABadPlanAndGoesOn) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load("qwen3_moe", 1, "best", 64);
  ASSERT_NE(bundle, nullptr);
  cli::OfflineSequence sequence(bundle->engine());
  EXPECT_EQ(sequence.Append({5, 320}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sequence.Append({5, 319}).ok());
  EXPECT_EQ(bundle->engine().Step({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sequence.Append({7}).ok());
}

TEST(Engine, RoutingIsObservedForEverySparseLayerAndRow) {
  cli::EngineOptions options;
  options.model = FixtureFolder("qwen2_moe_swa_step2");  // layers 1 and 3 have experts
  options.quiet = true;
  std::vector<std::int32_t> layers;
  options.routing_observer = [&layers](const api::RoutingObservation& seen) {
    layers.push_back(seen.layer);
    ASSERT_EQ(seen.experts.size(), 3U * 4U);
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t k = 0; k + 1 < 4; ++k) {
        EXPECT_GE(seen.weights[row * 4 + k], seen.weights[row * 4 + k + 1]);  // best first
      }
    }
  };
  absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  cli::OfflineSequence sequence((*bundle)->engine());
  ASSERT_TRUE(sequence.Append({1, 2, 3}).ok());
  EXPECT_THAT(layers, ::testing::ElementsAre(1, 3));
}

}  // namespace
}  // namespace comoe
