#include "scheduler/batching/batch_composer.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::batching {
namespace {

constexpr std::int64_t kFar = 1'000'000;
const api::ConstantStepCosts kCosts;

struct Input {
  std::int64_t num_tokens;
  std::int64_t num_computed;
  std::int64_t reachable_end = kFar;
};
struct Output {
  std::uint64_t sequence;
  std::int64_t start;
  std::int64_t rows;
  bool samples;

  friend bool operator==(const Output&, const Output&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Output& value) {
    return out << "{" << value.sequence << " at " << value.start << ", " << value.rows << " rows"
               << (value.samples ? ", samples}" : "}");
  }
};
struct ComposeCase {
  std::string name;
  std::int64_t max_rows;
  std::int64_t max_sequences;
  std::vector<Input> sequences;
  std::vector<Output> spans;
};

class ComposeTest : public ::testing::TestWithParam<ComposeCase> {};

TEST_P(ComposeTest, GivesTheseSpans) {
  const ComposeCase& test = GetParam();
  ComposerSnapshot snapshot;
  snapshot.step = base::StepId{17};
  snapshot.max_rows = test.max_rows;
  snapshot.max_sequences = test.max_sequences;
  snapshot.costs = &kCosts;
  std::deque<std::vector<base::TokenId>> tokens;
  std::deque<api::SamplingParams> sampling;
  for (std::size_t i = 0; i < test.sequences.size(); ++i) {
    const Input& input = test.sequences[i];
    std::vector<base::TokenId>& own = tokens.emplace_back();
    for (std::int64_t position = 0; position < input.num_tokens; ++position) {
      own.push_back(static_cast<base::TokenId>(position));
    }
    sampling.emplace_back().seed = i;
    RunnableSequence sequence;
    sequence.id = base::SequenceId{i};
    sequence.tokens = own;
    sequence.num_computed = input.num_computed;
    sequence.reachable_end = input.reachable_end;
    sequence.sampling = &sampling.back();
    snapshot.sequences.push_back(sequence);
  }
  const api::StepPlan plan = ComposeStep(snapshot);
  EXPECT_EQ(plan.step, base::StepId{17});
  std::vector<Output> spans;
  for (const api::PlanSpan& span : plan.spans) {
    spans.push_back({span.sequence.value, span.start_position, static_cast<std::int64_t>(span.tokens.size()),
                     span.sample.has_value()});
    EXPECT_EQ(span.tokens.front(), span.start_position);
    EXPECT_EQ(span.tokens.back(), span.start_position + static_cast<std::int64_t>(span.tokens.size()) - 1);
    EXPECT_EQ(span.logits, span.sample.has_value() ? api::LogitsMode::kLast : api::LogitsMode::kNone);
    EXPECT_FALSE(span.return_logits);
    if (span.sample.has_value()) {
      EXPECT_EQ(span.sample->seed, span.sequence.value);
    }
  }
  EXPECT_THAT(spans, ::testing::ElementsAreArray(test.spans));
}

INSTANTIATE_TEST_SUITE_P(
    Table, ComposeTest,
    ::testing::Values(
        ComposeCase{"nobody", 8, 4, {}, {}}, ComposeCase{"whole_prompt", 8, 1, {{5, 0}}, {{0, 0, 5, true}}},
        ComposeCase{"prompt_fills_budget", 8, 1, {{8, 0}}, {{0, 0, 8, true}}},
        ComposeCase{"first_chunk", 8, 1, {{20, 0}}, {{0, 0, 8, false}}},
        ComposeCase{"middle_chunk", 8, 1, {{20, 8}}, {{0, 8, 8, false}}},
        ComposeCase{"last_chunk", 8, 1, {{20, 16}}, {{0, 16, 4, true}}},
        ComposeCase{"decode", 8, 1, {{21, 20}}, {{0, 20, 1, true}}},
        ComposeCase{"one_row_budget", 1, 1, {{3, 1}}, {{0, 1, 1, false}}},
        ComposeCase{"blocks_end_the_chunk", 8, 1, {{20, 4, 10}}, {{0, 4, 6, false}}},
        ComposeCase{"no_block_no_span", 8, 2, {{20, 4, 4}, {9, 8}}, {{1, 8, 1, true}}},
        ComposeCase{"decodes_first",
                    8,
                    4,
                    {{20, 0}, {9, 8}, {6, 5}},
                    {{1, 8, 1, true}, {2, 5, 1, true}, {0, 0, 6, false}}},
        ComposeCase{
            "first_come_first_served", 10, 4, {{8, 0}, {8, 0}, {8, 0}}, {{0, 0, 8, true}, {1, 0, 2, false}}},
        ComposeCase{
            "budget_spent_on_decodes", 2, 4, {{9, 8}, {9, 8}, {9, 8}}, {{0, 8, 1, true}, {1, 8, 1, true}}},
        ComposeCase{"sequence_cap", 8, 1, {{5, 0}, {9, 8}}, {{1, 8, 1, true}}}),
    [](const ::testing::TestParamInfo<ComposeCase>& tested) { return tested.param.name; });

// Sequences of which only the numbers matter.
class ComposeOrderTest : public ::testing::Test {
 protected:
  RunnableSequence& Add(std::uint64_t id, std::int64_t pending) {
    sampling_.emplace_back();
    tokens_.emplace_back(static_cast<std::size_t>(pending + 10), 1);
    RunnableSequence sequence;
    sequence.id = base::SequenceId{id};
    sequence.tokens = tokens_.back();
    sequence.num_computed = 10;
    sequence.reachable_end = kFar;
    sequence.sampling = &sampling_.back();
    snapshot_.sequences.push_back(sequence);
    return snapshot_.sequences.back();
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> Compose(std::int64_t max_rows,
                                                             std::int64_t max_sequences,
                                                             std::int64_t max_chunk = 0) {
    snapshot_.max_rows = max_rows;
    snapshot_.max_sequences = max_sequences;
    snapshot_.max_chunk = max_chunk;
    std::vector<std::pair<std::uint64_t, std::size_t>> spans;
    for (const api::PlanSpan& span : ComposeStep(snapshot_).spans) {
      spans.emplace_back(span.sequence.value, span.tokens.size());
    }
    return spans;
  }

  ComposerSnapshot snapshot_{{}, 0, 0, 0, {}, &kCosts};
  std::deque<std::vector<base::TokenId>> tokens_;
  std::deque<api::SamplingParams> sampling_;
};

using Spans = std::vector<std::pair<std::uint64_t, std::size_t>>;

TEST_F(ComposeOrderTest, ChunksFillTheBudgetAsInTheirTable) {
  // Three prompts of 800 with a budget of 1024 and chunks of 400 (vLLM's test of concurrent partial
  // requests).
  for (const std::uint64_t id : {1, 2, 3}) {
    Add(id, 800);
  }
  EXPECT_EQ(Compose(1024, 8, 400), (Spans{{1, 400}, {2, 400}, {3, 224}}));
}

TEST_F(ComposeOrderTest, AShortPromptDoesNotWaitForLongOnes) {
  Add(1, 1500);
  Add(2, 1500);
  Add(3, 16);
  Add(4, 1);
  EXPECT_EQ(Compose(512, 8), (Spans{{4, 1}, {3, 16}, {1, 239}}));
}

TEST_F(ComposeOrderTest, ShortPromptsLeaveRowsToOthers) {
  Add(1, 1500);
  for (std::uint64_t id = 2; id < 12; ++id) {
    Add(id, 16);
  }
  EXPECT_EQ(Compose(64, 16), (Spans{{2, 16}, {3, 16}, {1, 16}}));
}

TEST_F(ComposeOrderTest, ThoseThatRanGoOnAndTheOverdueGoFirst) {
  for (const std::uint64_t id : {1, 2, 3, 4}) {
    Add(id, 1);
  }
  snapshot_.sequences[2].ran_last_step = true;
  snapshot_.sequences[3].ran_last_step = true;
  EXPECT_EQ(Compose(2, 8), (Spans{{3, 1}, {4, 1}}));
  snapshot_.sequences[1].times_passed_over = kMaxPassedOver;
  EXPECT_EQ(Compose(2, 8), (Spans{{2, 1}, {3, 1}}));
  EXPECT_EQ(Compose(8, 3), (Spans{{2, 1}, {3, 1}, {4, 1}}));
}

TEST_F(ComposeOrderTest, AnOverduePromptGetsRowsThoughDecodesFillTheStep) {
  Add(1, 100);
  for (const std::uint64_t id : {2, 3, 4}) {
    Add(id, 1);
  }
  EXPECT_EQ(Compose(3, 8), (Spans{{2, 1}, {3, 1}, {4, 1}}));
  snapshot_.sequences[0].times_passed_over = kMaxPassedOver;
  EXPECT_EQ(Compose(3, 8), (Spans{{1, 1}, {2, 1}, {3, 1}}));
}

// Even sequences need one half of the experts, odd ones the other.
class TwoHalves final : public api::StepCosts {
 public:
  absl::Duration StepTime(std::int64_t rows, std::int64_t /*sequences*/) const override {
    return absl::Milliseconds(rows);
  }
  std::int64_t BreakEvenChunk() const override { return 32; }
  double AddedDemand(absl::Span<const base::SequenceId> chosen, base::SequenceId candidate) const override {
    return std::any_of(chosen.begin(), chosen.end(),
                       [&](base::SequenceId other) { return other.value % 2 == candidate.value % 2; })
               ? 0
               : 1;
  }
};

TEST_F(ComposeOrderTest, FreePlacesGoToWhoAddsTheLeastDemand) {
  const TwoHalves costs;
  snapshot_.costs = &costs;
  for (const std::uint64_t id : {1, 2, 3, 4, 5, 6}) {
    Add(id, 1);
  }
  EXPECT_EQ(Compose(3, 8), (Spans{{1, 1}, {3, 1}, {5, 1}}));
  snapshot_.sequences[3].ran_last_step = true;
  EXPECT_EQ(Compose(3, 8), (Spans{{2, 1}, {4, 1}, {6, 1}}));
}

TEST_F(ComposeOrderTest, AChunkThatDoesNotPayWaits) {
  const TwoHalves costs;
  snapshot_.costs = &costs;
  Add(1, 100);
  Add(2, 100);
  EXPECT_EQ(Compose(120, 8), (Spans{{1, 100}})) << "20 rows of the second would cost as much as 32";
  EXPECT_EQ(Compose(140, 8), (Spans{{1, 100}, {2, 40}}));
  snapshot_.sequences[1].times_passed_over = kMaxPassedOver;
  EXPECT_EQ(Compose(120, 8), (Spans{{2, 100}}));
}

struct ScoreCase {
  std::string name;
  std::int64_t max_rows;
  std::int64_t num_computed;
  std::int64_t num_prompt;  // of 10 tokens, the i-th of which is i
  bool draws;
  std::vector<base::TokenId> score;
  api::LogitsMode logits;
};

class ComposeScoreTest : public ::testing::TestWithParam<ScoreCase> {};

TEST_P(ComposeScoreTest, ScoresTheNextTokenOfThePrompt) {
  const ScoreCase& test = GetParam();
  const std::vector<base::TokenId> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<base::TokenId> masked = {4, 2};
  api::SamplingParams sampling;
  sampling.presence_penalty = 1.0F;
  RunnableSequence sequence;
  sequence.tokens = tokens;
  sequence.num_computed = test.num_computed;
  sequence.reachable_end = kFar;
  sequence.sampling = test.draws ? &sampling : nullptr;
  sequence.num_prompt = test.num_prompt;
  sequence.top_logprobs = 3;
  sequence.prompt_logprobs = 5;
  sequence.masked = masked;
  const api::StepPlan plan = ComposeStep({base::StepId{1}, test.max_rows, 1, 0, {sequence}, &kCosts});
  ASSERT_EQ(plan.spans.size(), 1U);
  const api::PlanSpan& span = plan.spans[0];
  EXPECT_EQ(span.score, test.score);
  EXPECT_EQ(span.logits, test.logits);
  if (!test.score.empty()) {
    EXPECT_EQ(span.score_top_logprobs, 5);
  }
  const bool last = span.tokens.back() == 9;
  EXPECT_EQ(span.sample.has_value(), test.draws && last);
  if (span.sample.has_value()) {
    EXPECT_EQ(span.top_logprobs, 3);
    EXPECT_EQ(span.context.masked, masked);
    EXPECT_EQ(span.context.tokens, tokens) << "a penalty needs them";
    EXPECT_EQ(span.context.num_prompt, test.num_prompt);
  } else {
    EXPECT_TRUE(span.context.tokens.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, ComposeScoreTest,
    ::testing::Values(
        ScoreCase{"first_chunk", 4, 0, 10, true, {1, 2, 3, 4}, api::LogitsMode::kAll},
        ScoreCase{"last_chunk", 4, 6, 10, true, {7, 8, 9}, api::LogitsMode::kAll},
        ScoreCase{"last_row_of_the_prompt", 4, 9, 10, true, {}, api::LogitsMode::kLast},
        ScoreCase{"decode", 4, 9, 6, true, {}, api::LogitsMode::kLast},
        ScoreCase{"prefill_only", 20, 0, 10, false, {1, 2, 3, 4, 5, 6, 7, 8, 9}, api::LogitsMode::kAll},
        ScoreCase{"end_of_prefill_only", 1, 9, 10, false, {}, api::LogitsMode::kNone}),
    [](const ::testing::TestParamInfo<ScoreCase>& tested) { return tested.param.name; });

}  // namespace
}  // namespace comoe::batching
