#include "scheduler/batching/batch_composer.h"

#include <deque>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::batching {
namespace {

constexpr std::int64_t kFar = 1'000'000;

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
  std::deque<std::vector<base::TokenId>> tokens;
  std::deque<api::SamplingParams> sampling;
  for (std::size_t i = 0; i < test.sequences.size(); ++i) {
    const Input& input = test.sequences[i];
    std::vector<base::TokenId>& own = tokens.emplace_back();
    for (std::int64_t position = 0; position < input.num_tokens; ++position) {
      own.push_back(static_cast<base::TokenId>(position));
    }
    sampling.emplace_back().seed = i;
    snapshot.sequences.push_back(
        {base::SequenceId{i}, own, input.num_computed, input.reachable_end, &sampling.back()});
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

}  // namespace
}  // namespace comoe::batching
