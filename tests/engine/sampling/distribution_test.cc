// Draws against the probabilities that the reference computes: Pearson's chi-square over 100 000 draws of a
// fixed seed. A case fails below p = 1e-4; with a right sampler, each new seed would fail one case in 10 000.
#include <cmath>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/reference.h"

namespace comoe::sampling {
namespace {

constexpr double kLeastP = 1e-4;

// P(X >= x) for X chi-square with that many degrees: 1 less the series of the lower incomplete gamma
// function.
double ChiSquareTail(double x, int degrees) {
  if (degrees < 1) {
    return 1.0;
  }
  const double a = degrees / 2.0;
  double term = std::exp(a * std::log(x / 2.0) - x / 2.0 - std::lgamma(a + 1.0));
  double sum = 0.0;
  for (int n = 1; term > 1e-18 * sum || n < 2 * degrees; ++n) {
    sum += term;
    term *= x / 2.0 / (a + n);
  }
  return x <= 0.0 ? 1.0 : 1.0 - sum;
}

// Cells that expect fewer than 5 draws are pooled.
double PValue(const std::vector<int>& counts, const std::vector<double>& expected, int draws) {
  double chi_square = 0.0;
  int cells = 0;
  const auto add = [&](double count, double want) {
    chi_square += (count - want) * (count - want) / want;
    ++cells;
  };
  double pooled_want = 0.0;
  double pooled_count = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double want = expected[i] * draws;
    if (want >= 5.0) {
      add(counts[i], want);
    } else {
      pooled_want += want;
      pooled_count += counts[i];
    }
  }
  if (pooled_want >= 5.0) {
    add(pooled_count, pooled_want);
  }
  return ChiSquareTail(chi_square, cells - 1);
}

struct DistributionCase {
  std::string name;
  api::SamplingParams params;
  api::SampleContext context = {};
  std::size_t vocab = 100;
  int draws = 100000;
};

std::vector<int> CountDraws(const DistributionCase& test, const std::vector<float>& logits) {
  std::vector<int> counts(logits.size(), 0);
  SamplerScratch scratch;
  for (int draw = 0; draw < test.draws; ++draw) {
    const absl::StatusOr<base::TokenId> token =
        Sample(logits, test.params, test.context, static_cast<std::uint64_t>(draw), scratch);
    if (!token.ok()) {
      ADD_FAILURE() << token.status();
      break;
    }
    ++counts[static_cast<std::size_t>(*token)];
  }
  return counts;
}

api::SamplingParams Params(float temperature, std::int32_t top_k = 0, float top_p = 1.0F,
                           float min_p = 0.0F) {
  api::SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  params.seed = 7;
  return params;
}

api::SamplingParams Penalties(float repetition, float presence, float frequency,
                              std::vector<api::LogitBias> bias = {}) {
  api::SamplingParams params = Params(1.0F);
  params.repetition_penalty = repetition;
  params.presence_penalty = presence;
  params.frequency_penalty = frequency;
  params.logit_bias = std::move(bias);
  return params;
}

// A third of the vocabulary in the prompt, another third in the output, some often, some in both.
api::SampleContext Context(std::vector<base::TokenId> masked = {}) {
  api::SampleContext context;
  context.masked = std::move(masked);
  for (base::TokenId id = 0; id < 100; id += 3) {
    context.tokens.push_back(id);
  }
  context.num_prompt = static_cast<std::int64_t>(context.tokens.size());
  for (base::TokenId id = 1; id < 100; id += 3) {
    context.tokens.insert(context.tokens.end(), static_cast<std::size_t>(1 + id % 4), id);
  }
  context.tokens.push_back(3);
  context.tokens.push_back(99);
  return context;
}

// The five most probable tokens of the test's logits.
std::vector<base::TokenId> Favourites() {
  SamplerScratch scratch;
  const absl::StatusOr<api::LogprobRow> row = Score(RandomLogits(100, 11), 0, 5, scratch);
  std::vector<base::TokenId> ids;
  for (const api::TokenLogprob& token : row->top) {
    ids.push_back(token.id);
  }
  return ids;
}

api::SamplingParams Everything() {
  api::SamplingParams params =
      Penalties(1.2F, 0.4F, 0.2F, {{2, 3.0F}, {3, -1.0F}, {50, 4.0F}, {77, -100.0F}});
  params.temperature = 0.9F;
  params.top_k = 30;
  params.top_p = 0.9F;
  params.min_p = 0.01F;
  return params;
}

std::vector<DistributionCase> Cases() {
  return {
      {"plain", Params(1.0F)},
      {"cold", Params(0.3F)},
      {"hot", Params(2.0F)},
      {"top_k", Params(1.0F, 7)},
      {"top_k_all_but_one", Params(1.5F, 99)},
      {"top_k_whole", Params(1.0F, 100)},
      {"top_k_large", Params(2.0F, 1100), {}, 1500, 20000},
      {"top_p", Params(1.0F, 0, 0.8F)},
      {"top_p_tiny", Params(1.0F, 0, 1e-6F)},
      {"top_p_long", Params(2.0F, 0, 0.97F), {}, 1500, 20000},
      {"min_p", Params(1.0F, 0, 1.0F, 0.1F)},
      {"min_p_one", Params(1.0F, 0, 1.0F, 1.0F)},
      {"k_and_p", Params(0.8F, 20, 0.9F)},
      {"p_and_min", Params(1.2F, 0, 0.7F, 0.05F)},
      {"k_and_min", Params(1.2F, 10, 1.0F, 0.02F)},
      {"k_p_and_min", Params(0.9F, 30, 0.85F, 0.03F)},
      {"one_token", Params(1.0F, 1, 0.5F, 0.5F), {}, 1},
      {"repetition", Penalties(1.5F, 0.0F, 0.0F), Context()},
      {"repetition_below_one", Penalties(0.7F, 0.0F, 0.0F), Context()},
      {"presence", Penalties(1.0F, 1.1F, 0.0F), Context()},
      {"presence_negative", Penalties(1.0F, -2.0F, 0.0F), Context()},
      {"frequency", Penalties(1.0F, 0.0F, 0.6F), Context()},
      {"frequency_negative", Penalties(1.0F, 0.0F, -0.5F), Context()},
      {"all_penalties", Penalties(1.3F, 0.5F, 0.25F), Context()},
      {"logit_bias", Penalties(1.0F, 0.0F, 0.0F, {{0, 2.0F}, {13, -3.0F}, {40, 6.5F}, {41, -100.0F}})},
      {"min_tokens_mask", Params(1.0F), Context(Favourites())},
      {"mask_and_top_k", Params(1.0F, 5), Context(Favourites())},
      {"mask_of_everything_but_two", Penalties(1.1F, 0.2F, 0.0F),
       [] {
         api::SampleContext context = Context();
         for (base::TokenId id = 2; id < 100; ++id) {
           context.masked.push_back(id);
         }
         return context;
       }()},
      {"bias_and_mask", Penalties(1.0F, 0.0F, 0.0F, {{0, 5.0F}, {1, 5.0F}}), Context({1, 2})},
      {"penalties_and_top_p",
       [] {
         api::SamplingParams params = Penalties(1.3F, 0.5F, 0.25F);
         params.top_p = 0.8F;
         return params;
       }(),
       Context()},
      {"everything", Everything(), Context(Favourites())},
  };
}

class DistributionTest : public ::testing::TestWithParam<DistributionCase> {};

TEST_P(DistributionTest, ChiSquareOverDraws) {
  const DistributionCase& test = GetParam();
  const std::vector<float> logits = RandomLogits(test.vocab, 11);
  const std::vector<double> expected = ReferenceDistribution(logits, test.params, test.context);
  const std::vector<int> counts = CountDraws(test, logits);
  for (std::size_t i = 0; i < test.vocab; ++i) {
    EXPECT_TRUE(expected[i] > 0.0 || counts[i] == 0) << "token " << i << " was filtered out";
  }
  const double p = PValue(counts, expected, test.draws);
  RecordProperty("p_value", std::to_string(p));
  EXPECT_GT(p, kLeastP);
}

INSTANTIATE_TEST_SUITE_P(Options, DistributionTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<DistributionCase>& tested) {
                           return tested.param.name;
                         });

// The test above can fail: a penalty that is a little too small is seen.
TEST(DistributionTest, SeesASmallMistake) {
  const DistributionCase test = {"", Penalties(1.0F, 0.5F, 0.0F), Context()};
  const std::vector<float> logits = RandomLogits(100, 11);
  const std::vector<int> counts = CountDraws(test, logits);
  api::SamplingParams wrong = test.params;
  wrong.presence_penalty = 0.65F;
  EXPECT_LT(PValue(counts, ReferenceDistribution(logits, wrong, test.context), test.draws), kLeastP);
  EXPECT_NEAR(ChiSquareTail(3.841, 1), 0.05, 1e-4);
  EXPECT_NEAR(ChiSquareTail(124.342, 100), 0.05, 1e-4);
}

}  // namespace
}  // namespace comoe::sampling
