// What an engine over real (tiny) checkpoints draws and scores.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offline.h"
#include "engine/base/rng.h"
#include "engine/sampling/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

std::unique_ptr<cli::EngineBundle> Load(const std::string& name) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  cli::EngineOptions options;
  options.model = std::string(root != nullptr ? root : ".") + "/tests/fixtures/checkpoints/" + name;
  options.threads = 1;
  options.quiet = true;
  options.max_batch_tokens = 64;
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

// Rows [begin, end) of `tokens` for the s-th of four sequences, whose blocks are its own.
api::PlanSpan MakeSpan(const api::Engine& engine, std::uint64_t s, const std::vector<base::TokenId>& tokens,
                       std::size_t begin, std::size_t end) {
  api::PlanSpan span;
  span.sequence = {s};
  span.start_position = static_cast<std::int64_t>(begin);
  span.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens.begin() + static_cast<std::ptrdiff_t>(end));
  for (std::size_t group = 0; group < engine.capacity().num_blocks.size(); ++group) {
    api::GroupState& state = span.groups.emplace_back();
    for (std::int32_t i = 0; i < 4; ++i) {
      state.blocks.push_back({static_cast<std::int32_t>(4 * s) + i});
    }
  }
  return span;
}

class EngineDrawTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineDrawTest, PromptScoresAreThoseOfAllLogitsWhateverTheChunk) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load(GetParam());
  ASSERT_NE(bundle, nullptr);
  api::Engine& engine = bundle->engine();
  const std::vector<base::TokenId> prompt = RandomPrompt(1, 45);
  std::vector<api::LogprobRow> want;
  sampling::SamplerScratch scratch;
  cli::OfflineSequence all(engine);
  ASSERT_TRUE(all.AppendWithLogits(
                     prompt,
                     [&](std::int64_t position, absl::Span<const float> logits) {
                       if (const auto next = static_cast<std::size_t>(position + 1); next < prompt.size()) {
                         absl::StatusOr<api::LogprobRow> row =
                             sampling::Score(logits, prompt[next], 5, scratch);
                         ASSERT_TRUE(row.ok()) << row.status();
                         EXPECT_NEAR(row->logprob, -cli::NegativeLogLikelihood(logits, prompt[next]), 2e-6);
                         want.push_back(*std::move(row));
                       }
                     })
                  .ok());
  for (const std::size_t chunk : {1U, 2U, 7U, 16U, 44U, 45U}) {
    std::vector<api::LogprobRow> got;
    for (std::size_t begin = 0; begin < prompt.size(); begin += chunk) {
      const std::size_t end = std::min(begin + chunk, prompt.size());
      api::StepPlan plan;
      plan.spans = {MakeSpan(engine, 0, prompt, begin, end)};
      api::PlanSpan& span = plan.spans[0];
      span.logits = api::LogitsMode::kAll;
      span.score_top_logprobs = 5;
      for (std::size_t next = begin + 1; next < std::min(end + 1, prompt.size()); ++next) {
        span.score.push_back(prompt[next]);
      }
      absl::StatusOr<api::StepResult> result = engine.Step(plan);
      ASSERT_TRUE(result.ok()) << result.status();
      got.insert(got.end(), result->spans[0].scores.begin(), result->spans[0].scores.end());
    }
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].logprob, want[i].logprob) << "chunks of " << chunk << ", position " << i;
      ASSERT_EQ(got[i].top.size(), 5U);
      for (std::size_t n = 0; n < 5; ++n) {
        EXPECT_EQ(got[i].top[n].id, want[i].top[n].id);
        EXPECT_EQ(got[i].top[n].logprob, want[i].top[n].logprob);
      }
    }
  }
}

struct Drawn {
  std::vector<base::TokenId> tokens;
  std::vector<float> logprobs;
};

// These sequences run in one step each time, with prompts and parameters of their own.
std::vector<Drawn> Generate(api::Engine& engine, const std::vector<std::uint64_t>& sequences, int count) {
  std::vector<std::vector<base::TokenId>> tokens;
  for (const std::uint64_t s : sequences) {
    tokens.push_back(RandomPrompt(30 + s, 8 + 5 * static_cast<std::int64_t>(s)));
  }
  std::vector<Drawn> drawn(sequences.size());
  std::vector<std::size_t> computed(sequences.size(), 0);
  for (int n = 0; n < count; ++n) {
    api::StepPlan plan;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      api::PlanSpan span = MakeSpan(engine, sequences[i], tokens[i], computed[i], tokens[i].size());
      span.logits = api::LogitsMode::kLast;
      api::SamplingParams& params = span.sample.emplace();
      params.temperature = sequences[i] == 3 ? 0.0F : 1.0F;
      params.seed = 5;
      params.repetition_penalty = sequences[i] == 1 ? 1.5F : 1.0F;
      params.top_p = sequences[i] == 2 ? 0.8F : 1.0F;
      if (params.penalises()) {
        span.context.tokens = tokens[i];
        span.context.num_prompt = 8 + 5 * static_cast<std::int64_t>(sequences[i]);
      }
      span.top_logprobs = 2;
      plan.spans.push_back(std::move(span));
    }
    const absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) {
      break;
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      computed[i] = tokens[i].size();
      tokens[i].push_back(*result->spans[i].token);
      drawn[i].tokens.push_back(*result->spans[i].token);
      drawn[i].logprobs.push_back(result->spans[i].logprobs.logprob);
      EXPECT_EQ(result->spans[i].logprobs.top.size(), 2U);
    }
  }
  return drawn;
}

TEST_P(EngineDrawTest, OtherSequencesOfAStepDoNotMatter) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load(GetParam());
  ASSERT_NE(bundle, nullptr);
  const std::vector<Drawn> together = Generate(bundle->engine(), {2, 0, 3, 1}, 12);
  const std::vector<std::uint64_t> order = {2, 0, 3, 1};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<Drawn> alone = Generate(bundle->engine(), {order[i]}, 12);
    EXPECT_EQ(together[i].tokens, alone[0].tokens) << order[i];
    EXPECT_EQ(together[i].logprobs, alone[0].logprobs) << order[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, EngineDrawTest,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"));

TEST(EngineContextTest, ContextOfADrawCounts) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load("qwen3_moe");
  ASSERT_NE(bundle, nullptr);
  api::Engine& engine = bundle->engine();
  const std::vector<base::TokenId> prompt = RandomPrompt(9, 12);
  const auto draw = [&](const std::function<void(api::PlanSpan&)>& change) {
    api::StepPlan plan;
    plan.spans = {MakeSpan(engine, 0, prompt, 0, prompt.size())};
    plan.spans[0].logits = api::LogitsMode::kLast;
    plan.spans[0].sample.emplace().temperature = 0.0F;
    change(plan.spans[0]);
    absl::StatusOr<api::StepResult> result = engine.Step(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? std::move(result->spans[0]) : api::SpanResult();
  };
  const api::SpanResult plain = draw([](api::PlanSpan& span) { span.top_logprobs = 2; });
  ASSERT_EQ(plain.logprobs.top.size(), 2U);
  EXPECT_EQ(plain.logprobs.top[0].id, *plain.token);
  EXPECT_EQ(plain.logprobs.top[0].logprob, plain.logprobs.logprob);
  const api::SpanResult masked = draw([&](api::PlanSpan& span) {
    span.context.masked = {*plain.token};
    span.top_logprobs = 1;
  });
  EXPECT_EQ(*masked.token, plain.logprobs.top[1].id);
  EXPECT_EQ(masked.logprobs.top[0].id, *plain.token) << "of the unmodified logits";
  EXPECT_EQ(masked.logprobs.logprob, plain.logprobs.top[1].logprob);
  const api::SpanResult biased = draw([](api::PlanSpan& span) { span.sample->logit_bias = {{77, 100.0F}}; });
  EXPECT_EQ(*biased.token, 77);
  EXPECT_TRUE(biased.logprobs.top.empty()) << "nobody asked";
}

// Offline completions know their history, as those of the scheduler do.
TEST(EngineContextTest, OfflineDrawsArePenalised) {
  const std::unique_ptr<cli::EngineBundle> bundle = Load("qwen3_moe");
  ASSERT_NE(bundle, nullptr);
  api::SamplingParams greedy;
  greedy.temperature = 0.0F;
  greedy.presence_penalty = 2.0F;
  greedy.frequency_penalty = 2.0F;
  cli::OfflineSequence sequence(bundle->engine());
  std::vector<base::TokenId> next = RandomPrompt(3, 10);
  std::set<base::TokenId> drawn;  // such penalties are more than this model's logits differ by
  for (int i = 0; i < 20; ++i) {
    const absl::StatusOr<api::SpanResult> result = sequence.AppendAndSample(next, greedy);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(drawn.insert(*result->token).second) << *result->token << " again";
    next = {*result->token};
  }
}

}  // namespace
}  // namespace comoe
