#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::sampling {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

api::SamplingParams Params(float temperature, std::int32_t top_k = 0, float top_p = 1.0F, float min_p = 0.0F,
                           std::uint64_t seed = 7) {
  api::SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  params.seed = seed;
  return params;
}

Sampled MustSample(const std::vector<float>& logits, const api::SamplingParams& params,
                   std::uint64_t position) {
  SamplerScratch scratch;
  const absl::StatusOr<Sampled> sampled = Sample(logits, params, position, scratch);
  EXPECT_TRUE(sampled.ok()) << sampled.status();
  return sampled.ok() ? *sampled : Sampled{-1, 0.0F};
}

// Logits like a model's: a few likely tokens, a long tail.
std::vector<float> RandomLogits(std::size_t vocab, std::uint64_t seed) {
  std::vector<float> logits(vocab);
  for (std::size_t i = 0; i < vocab; ++i) {
    const double a = base::RandomUnit(seed, 2 * i);
    const double b = base::RandomUnit(seed, 2 * i + 1);
    logits[i] =
        static_cast<float>(2.5 * std::sqrt(-2.0 * std::log(1.0 - a)) * std::cos(6.283185307179586 * b));
  }
  return logits;
}

// The obvious way, in double and with whole sorts: what each token's probability shall be.
std::vector<double> ExpectedDistribution(const std::vector<float>& logits,
                                         const api::SamplingParams& params) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weight(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[order[0]])) /
                         static_cast<double>(params.temperature));
  }
  std::vector<std::size_t> kept;
  for (const std::size_t i : order) {
    const bool within_k = params.top_k == 0 || kept.size() < static_cast<std::size_t>(params.top_k);
    if (within_k && weight[i] >= static_cast<double>(params.min_p)) {
      kept.push_back(i);
    }
  }
  double mass = 0.0;
  for (const std::size_t i : kept) {
    mass += weight[i];
  }
  std::vector<double> result(logits.size(), 0.0);
  double reached = 0.0;
  for (const std::size_t i : kept) {
    result[i] = weight[i];
    reached += weight[i];
    if (reached >= static_cast<double>(params.top_p) * mass) {
      break;
    }
  }
  for (double& probability : result) {
    probability /= reached;
  }
  return result;
}

struct DistributionCase {
  std::string name;
  std::size_t vocab;
  api::SamplingParams params;
  int draws = 100000;
};

class DistributionTest : public ::testing::TestWithParam<DistributionCase> {};

TEST_P(DistributionTest, ChiSquareOverDraws) {
  const DistributionCase& test = GetParam();
  const std::vector<float> logits = RandomLogits(test.vocab, 11);
  const std::vector<double> expected = ExpectedDistribution(logits, test.params);
  std::vector<int> counts(test.vocab, 0);
  SamplerScratch scratch;
  for (int draw = 0; draw < test.draws; ++draw) {
    const absl::StatusOr<Sampled> sampled =
        Sample(logits, test.params, static_cast<std::uint64_t>(draw), scratch);
    ASSERT_TRUE(sampled.ok());
    ++counts[static_cast<std::size_t>(sampled->id)];
  }
  // Cells that expect fewer than 5 draws are pooled.
  double chi_square = 0.0;
  int cells = 0;
  double pooled_expected = 0.0;
  double pooled_count = 0.0;
  for (std::size_t i = 0; i < test.vocab; ++i) {
    const double want = expected[i] * test.draws;
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " was filtered out";
    } else if (want < 5.0) {
      pooled_expected += want;
      pooled_count += counts[i];
    } else {
      chi_square += (counts[i] - want) * (counts[i] - want) / want;
      ++cells;
    }
  }
  if (pooled_expected >= 5.0) {
    chi_square += (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
    ++cells;
  }
  // Five standard deviations over the mean: the seed is fixed, so this either always passes or never.
  const double degrees = cells - 1;
  EXPECT_LE(chi_square, degrees + 5.0 * std::sqrt(2.0 * degrees) + 5.0) << cells << " cells";
}

INSTANTIATE_TEST_SUITE_P(
    Filters, DistributionTest,
    ::testing::Values(DistributionCase{"plain", 100, Params(1.0F)},
                      DistributionCase{"cold", 100, Params(0.3F)}, DistributionCase{"hot", 100, Params(2.0F)},
                      DistributionCase{"top_k", 100, Params(1.0F, 7)},
                      DistributionCase{"top_k_all_but_one", 100, Params(1.5F, 99)},
                      DistributionCase{"top_k_whole", 100, Params(1.0F, 100)},
                      DistributionCase{"top_k_large", 1500, Params(2.0F, 1100), 10000},
                      DistributionCase{"top_p", 100, Params(1.0F, 0, 0.8F)},
                      DistributionCase{"top_p_tiny", 100, Params(1.0F, 0, 1e-6F)},
                      DistributionCase{"top_p_long", 1500, Params(2.0F, 0, 0.97F), 10000},
                      DistributionCase{"min_p", 100, Params(1.0F, 0, 1.0F, 0.1F)},
                      DistributionCase{"min_p_one", 100, Params(1.0F, 0, 1.0F, 1.0F)},
                      DistributionCase{"k_and_p", 100, Params(0.8F, 20, 0.9F)},
                      DistributionCase{"p_and_min", 100, Params(1.2F, 0, 0.7F, 0.05F)},
                      DistributionCase{"k_and_min", 100, Params(1.2F, 10, 1.0F, 0.02F)},
                      DistributionCase{"all", 100, Params(0.9F, 30, 0.85F, 0.03F)},
                      DistributionCase{"one_token", 1, Params(1.0F, 1, 0.5F, 0.5F)}),
    [](const ::testing::TestParamInfo<DistributionCase>& tested) { return tested.param.name; });

TEST(SamplerTest, GreedyTakesTheLowestOfEqualLogits) {
  for (const std::size_t size : {1U, 7U, 8U, 9U, 31U}) {
    for (std::size_t first = 0; first < size; ++first) {
      std::vector<float> logits(size, -1.0F);
      for (std::size_t i = first; i < size; ++i) {
        logits[i] = 2.0F;
      }
      EXPECT_EQ(MustSample(logits, Params(0.0F), 3).id, static_cast<base::TokenId>(first));
      EXPECT_EQ(MustSample(logits, Params(1.0F, 1), 3).id, static_cast<base::TokenId>(first)) << "top_k = 1";
    }
  }
}

TEST(SamplerTest, GreedyDependsOnNeitherSeedNorPosition) {
  const std::vector<float> logits = RandomLogits(500, 3);
  const base::TokenId id = MustSample(logits, Params(0.0F), 0).id;
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(MustSample(logits, Params(0.0F, 5, 0.5F, 0.1F, i), i).id, id);
  }
}

TEST(SamplerTest, LogprobIsUnderTheUnmodifiedLogits) {
  const std::vector<float> logits = RandomLogits(3000, 5);
  double mass = 0.0;
  for (const float logit : logits) {
    mass += std::exp(static_cast<double>(logit));
  }
  for (const api::SamplingParams& params :
       {Params(0.0F), Params(1.0F), Params(0.5F, 10), Params(2.0F, 0, 0.9F), Params(1.7F, 50, 0.9F, 0.01F)}) {
    for (std::uint64_t position = 0; position < 10; ++position) {
      const Sampled sampled = MustSample(logits, params, position);
      const double want = static_cast<double>(logits[static_cast<std::size_t>(sampled.id)]) - std::log(mass);
      EXPECT_NEAR(sampled.logprob, want, 2e-6);
    }
  }
}

TEST(SamplerTest, SameSeedAndPositionGiveTheSameToken) {
  const std::vector<float> logits = RandomLogits(200, 1);
  SamplerScratch used;  // an old scratch must not leak into a result
  for (std::uint64_t position = 0; position < 200; ++position) {
    const api::SamplingParams params = Params(1.0F, position % 2 == 0 ? 0 : 40, 0.95F, 0.0F, 99);
    const absl::StatusOr<Sampled> first = Sample(logits, params, position, used);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->id, MustSample(logits, params, position).id);
  }
}

TEST(SamplerTest, PositionsAndSeedsDrawIndependently) {
  // Two equal tokens: pairs of draws at neighbouring positions, and at one position of neighbouring seeds.
  const std::vector<float> logits = {0.0F, 0.0F};
  std::vector<int> by_position(4, 0);
  std::vector<int> by_seed(4, 0);
  constexpr int kPairs = 20000;
  for (std::uint64_t i = 0; i < kPairs; ++i) {
    const auto draw = [&](std::uint64_t seed, std::uint64_t position) {
      return static_cast<std::size_t>(MustSample(logits, Params(1.0F, 0, 1.0F, 0.0F, seed), position).id);
    };
    ++by_position[2 * draw(5, i) + draw(5, i + 1)];
    ++by_seed[2 * draw(i, 4) + draw(i + 1, 4)];
  }
  for (const std::vector<int>& counts : {by_position, by_seed}) {
    for (const int count : counts) {
      EXPECT_NEAR(count, kPairs / 4, 5 * std::sqrt(kPairs * 3.0 / 16.0));
    }
  }
}

TEST(SamplerTest, MaskedTokensAreNeverDrawn) {
  const std::vector<float> logits = {-kInfinity, 1.0F, -kInfinity, 0.5F, -kInfinity};
  for (const api::SamplingParams& params : {Params(1.0F), Params(2.0F, 4), Params(2.0F, 0, 0.999F),
                                            Params(1e-4F), Params(1.0F, 0, 1.0F, 1e-30F), Params(0.0F)}) {
    std::set<base::TokenId> seen;
    for (std::uint64_t position = 0; position < 500; ++position) {
      const Sampled sampled = MustSample(logits, params, position);
      seen.insert(sampled.id);
      EXPECT_TRUE(std::isfinite(sampled.logprob));
    }
    EXPECT_THAT(seen, ::testing::IsSubsetOf({1, 3}));
  }
  EXPECT_EQ(MustSample({-kInfinity, -3.0F}, Params(1.0F), 0).logprob, 0.0F);
}

TEST(SamplerTest, ExtremeLogits) {
  const float lowest = std::numeric_limits<float>::lowest();
  const float highest = std::numeric_limits<float>::max();
  for (const std::vector<float>& logits :
       {std::vector<float>{-1e30F, 1e30F, 0.0F}, std::vector<float>{lowest, highest, -highest},
        std::vector<float>{-kInfinity, lowest, -kInfinity}}) {
    for (const api::SamplingParams& params :
         {Params(0.0F), Params(1e-5F), Params(1.0F), Params(2.0F, 2, 0.9F, 0.1F)}) {
      for (std::uint64_t position = 0; position < 50; ++position) {
        const Sampled sampled = MustSample(logits, params, position);
        EXPECT_EQ(sampled.id, 1);
        EXPECT_EQ(sampled.logprob, 0.0F);
      }
    }
  }
}

TEST(SamplerTest, EqualLogitsAreUniform) {
  for (const float level : {0.0F, 1e30F, -1e30F}) {
    const std::vector<float> logits(10, level);
    std::vector<int> counts(10, 0);
    constexpr int kDraws = 20000;
    for (std::uint64_t position = 0; position < kDraws; ++position) {
      const Sampled sampled = MustSample(logits, Params(0.7F), position);
      ++counts[static_cast<std::size_t>(sampled.id)];
      EXPECT_NEAR(sampled.logprob, -std::log(10.0), 1e-6);
    }
    for (const int count : counts) {
      EXPECT_NEAR(count, kDraws / 10, 5 * std::sqrt(kDraws * 0.09));
    }
  }
}

TEST(SamplerTest, TopPReachesIntoALongFlatTail) {
  // One token holds half of the mass, 999 equal ones the rest: 0.6 of it takes 200 of those, the lowest ids.
  std::vector<float> logits(1000, 0.0F);
  logits[500] = std::log(999.0F);
  std::vector<int> counts(1000, 0);
  SamplerScratch scratch;
  constexpr int kDraws = 20000;
  for (std::uint64_t position = 0; position < kDraws; ++position) {
    const absl::StatusOr<Sampled> sampled = Sample(logits, Params(1.0F, 0, 0.6F), position, scratch);
    ASSERT_TRUE(sampled.ok());
    ++counts[static_cast<std::size_t>(sampled->id)];
  }
  EXPECT_NEAR(counts[500], kDraws * 5 / 6, 5 * std::sqrt(kDraws * 5.0 / 36.0));
  for (std::size_t id = 0; id < 1000; ++id) {
    EXPECT_TRUE(id < 200 || id == 500 || counts[id] == 0) << id;
  }
  EXPECT_GE(std::count_if(counts.begin(), counts.begin() + 199, [](int count) { return count > 0; }), 195);
}

TEST(SamplerTest, RefusesWhatIsNoDistribution) {
  SamplerScratch scratch;
  const auto status = [&](const std::vector<float>& logits, float temperature) {
    return Sample(logits, Params(temperature), 0, scratch).status();
  };
  for (const float temperature : {0.0F, 1.0F}) {
    for (std::size_t place = 0; place < 19; ++place) {
      std::vector<float> logits(19, 1.0F);
      logits[place] = kNaN;
      EXPECT_EQ(status(logits, temperature).code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(status(logits, temperature).message()), HasSubstr("NaN"));
      logits[place] = kInfinity;
      EXPECT_THAT(std::string(status(logits, temperature).message()), HasSubstr("+infinity"));
    }
    EXPECT_EQ(status({}, temperature).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status({-kInfinity, -kInfinity}, temperature).code(), absl::StatusCode::kInternal);
  }
}

TEST(SamplerTest, ScratchStopsGrowing) {
  SamplerScratch scratch;
  const std::vector<float> logits = RandomLogits(1000, 2);
  ASSERT_TRUE(Sample(logits, Params(1.0F, 0, 0.9F), 0, scratch).ok());
  const float* weights = scratch.weights.data();
  const Candidate* candidates = scratch.candidates.data();
  for (std::uint64_t position = 0; position < 50; ++position) {
    const std::int32_t top_k = position % 3 == 0 ? 0 : static_cast<std::int32_t>(position * 10);
    ASSERT_TRUE(Sample(logits, Params(1.3F, top_k, 0.99F, 1e-4F), position, scratch).ok());
  }
  EXPECT_EQ(scratch.weights.data(), weights);
  EXPECT_EQ(scratch.candidates.data(), candidates);
}

}  // namespace
}  // namespace comoe::sampling
