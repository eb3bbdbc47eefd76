#include "engine/sampling/adjust.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/rng.h"
#include "engine/sampling/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/reference.h"

namespace comoe::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Draws of one seed, one after another.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::int64_t Roll(std::int64_t n) {
    return static_cast<std::int64_t>(base::RandomBits(seed_, draws_++) % static_cast<std::uint64_t>(n));
  }
  bool Chance(std::int64_t one_in) { return Roll(one_in) == 0; }
  float Between(double low, double high) {
    return static_cast<float>(low + (high - low) * base::RandomUnit(seed_, draws_++));
  }

 private:
  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
};

struct Case {
  std::vector<float> logits;
  api::SamplingParams params;
  api::SampleContext context;
};

// Half of the cases have coarse numbers, so that logits are equal before and after; some have masked logits.
Case RandomCase(Dice& dice) {
  Case result;
  const std::int64_t vocab = 1 + dice.Roll(80);
  const bool coarse = dice.Chance(2);
  const auto number = [&](double low, double high) {
    const float value = dice.Between(low, high);
    return coarse ? std::round(value * 4.0F) / 4.0F : value;
  };
  for (std::int64_t i = 0; i < vocab; ++i) {
    result.logits.push_back(i > 0 && dice.Chance(30) ? -kInfinity : number(-6.0, 6.0));
  }
  api::SamplingParams& params = result.params;
  params.temperature = dice.Chance(4) ? 0.0F : dice.Between(0.2, 2.0);
  params.top_k = dice.Chance(2) ? 0 : static_cast<std::int32_t>(1 + dice.Roll(vocab));
  params.top_p = dice.Chance(2) ? 1.0F : dice.Between(0.05, 1.0);
  params.min_p = dice.Chance(2) ? 0.0F : dice.Between(0.001, 0.5);
  params.repetition_penalty = dice.Chance(2) ? 1.0F : dice.Between(0.1, 2.0);
  params.presence_penalty = dice.Chance(2) ? 0.0F : number(-2.0, 2.0);
  params.frequency_penalty = dice.Chance(2) ? 0.0F : number(-2.0, 2.0);
  params.seed = static_cast<std::uint64_t>(dice.Roll(1000));
  for (base::TokenId id = 0; id < vocab && !params.greedy(); ++id) {
    if (dice.Chance(6)) {
      params.logit_bias.push_back({id, number(-8.0, 8.0)});
    }
  }
  if (params.penalises()) {
    for (std::int64_t length = 1 + dice.Roll(60); length > 0; --length) {
      result.context.tokens.push_back(static_cast<base::TokenId>(dice.Roll(vocab)));
    }
    result.context.num_prompt = dice.Roll(static_cast<std::int64_t>(result.context.tokens.size()) + 1);
  }
  if (dice.Chance(3)) {
    const bool all = dice.Chance(5);
    for (base::TokenId id = 0; id < vocab; ++id) {
      if (all || dice.Chance(8)) {
        result.context.masked.push_back(id);
      }
    }
  }
  return result;
}

// One scratch for all of them: nothing of a case may be left for the next.
TEST(AdjustTest, RandomCasesAgreeWithTheReference) {
  Dice dice(1);
  SamplerScratch scratch;
  int filtered = 0;
  int greedy = 0;
  for (int n = 0; n < 20000; ++n) {
    const Case test = RandomCase(dice);
    const std::vector<double> want = ReferenceAdjusted(test.logits, test.params, test.context);
    scratch.candidates.clear();
    const absl::StatusOr<base::TokenId> token =
        Sample(test.logits, test.params, test.context, static_cast<std::uint64_t>(n), scratch);
    ASSERT_TRUE(token.ok()) << n << ": " << token.status();
    if (Adjusts(test.params, test.context)) {
      ASSERT_EQ(scratch.adjust.logits.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        const auto got = static_cast<double>(scratch.adjust.logits[i]);
        const double tolerance = 1e-6 * std::max(1.0, std::fabs(want[i]));
        ASSERT_TRUE(got == want[i] || std::fabs(got - want[i]) <= tolerance)
            << n << ": " << got << " not " << want[i];
      }
    }
    if (test.params.greedy()) {
      ASSERT_EQ(*token, std::max_element(want.begin(), want.end()) - want.begin()) << n;
      ++greedy;
      continue;
    }
    const std::vector<std::size_t> kept = ReferenceKept(want, test.params);
    ASSERT_THAT(kept, ::testing::Contains(static_cast<std::size_t>(*token))) << n;
    if (!scratch.candidates.empty()) {
      std::vector<std::size_t> ids;
      for (const Candidate& candidate : scratch.candidates) {
        ids.push_back(static_cast<std::size_t>(candidate.id));
      }
      ASSERT_THAT(ids, ::testing::UnorderedElementsAreArray(kept)) << n;
      ++filtered;
    }
  }
  EXPECT_GT(filtered, 10000);
  EXPECT_GT(greedy, 4000);
}

base::TokenId Greedy(const std::vector<float>& logits, api::SamplingParams params,
                     const api::SampleContext& context) {
  params.temperature = 0.0F;
  SamplerScratch scratch;
  const absl::StatusOr<base::TokenId> token = Sample(logits, params, context, 0, scratch);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.value_or(-1);
}

api::SampleContext After(std::vector<base::TokenId> tokens, std::int64_t num_prompt,
                         std::vector<base::TokenId> masked = {}) {
  api::SampleContext context;
  context.tokens = std::move(tokens);
  context.num_prompt = num_prompt;
  context.masked = std::move(masked);
  return context;
}

TEST(AdjustTest, GreedyDrawsAreAdjusted) {
  const std::vector<float> logits = {1.0F, 2.0F, 1.5F};
  EXPECT_EQ(Greedy(logits, {}, {}), 1);
  api::SamplingParams bias;
  bias.logit_bias = {{0, 1.5F}};
  EXPECT_EQ(Greedy(logits, bias, {}), 0);
  EXPECT_EQ(Greedy(logits, {}, After({}, 0, {1})), 2);
  api::SamplingParams repetition;
  repetition.repetition_penalty = 2.0F;
  EXPECT_EQ(Greedy(logits, repetition, After({1}, 1)), 2);
  EXPECT_EQ(Greedy({-2.0F, -1.0F, -1.5F}, repetition, After({1}, 1)), 2);
  api::SamplingParams presence;
  presence.presence_penalty = 0.75F;
  EXPECT_EQ(Greedy(logits, presence, After({1}, 1)), 1) << "the prompt does not count";
  EXPECT_EQ(Greedy(logits, presence, After({1}, 0)), 2);
  api::SamplingParams frequency;
  frequency.frequency_penalty = 0.3F;
  EXPECT_EQ(Greedy(logits, frequency, After({1}, 0)), 1);
  EXPECT_EQ(Greedy(logits, frequency, After({1, 1}, 0)), 2);
}

TEST(AdjustTest, MasksThatLeaveNothingAreIgnored) {
  const std::vector<float> logits = {1.0F, 2.0F, -kInfinity, 1.5F};
  for (const std::vector<base::TokenId>& masked :
       {std::vector<base::TokenId>{0, 1, 2, 3}, std::vector<base::TokenId>{3, 1, 0, 1}}) {
    EXPECT_EQ(Greedy(logits, {}, After({}, 0, masked)), 1);
    api::SamplingParams bias;
    bias.logit_bias = {{0, 3.0F}};
    EXPECT_EQ(Greedy(logits, bias, After({}, 0, masked)), 0) << "what else was asked for still holds";
  }
  EXPECT_EQ(Greedy(logits, {}, After({}, 0, {0, 1, 2})), 3);
}

TEST(AdjustTest, ParametersMakeNoInfinity) {
  api::SamplingParams params;
  params.repetition_penalty = std::numeric_limits<float>::denorm_min();
  params.logit_bias = {{0, 100.0F}};
  const std::vector<float> logits = {3.0F, -2.0F, -kInfinity, 1.0F};
  const api::SampleContext context = After({0, 1, 2}, 3);
  AdjustScratch scratch;
  const absl::Span<const float> adjusted = Adjust(logits, params, context, MaskUse::kApply, scratch);
  EXPECT_EQ(adjusted[0], std::numeric_limits<float>::max());
  EXPECT_NEAR(adjusted[1], 0.0F, 1e-40F);
  EXPECT_EQ(adjusted[2], -kInfinity);
  EXPECT_EQ(adjusted[3], 1.0F);
  EXPECT_EQ(Greedy(logits, params, context), 0);
}

TEST(AdjustTest, BadLogitsAreFoundUnderAMaskOrBias) {
  api::SamplingParams params;
  params.logit_bias = {{1, 1.0F}};
  params.repetition_penalty = 1.5F;
  SamplerScratch scratch;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    const absl::Status status = Sample({0.0F, bad}, params, After({1}, 1, {1}), 0, scratch).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace comoe::sampling
