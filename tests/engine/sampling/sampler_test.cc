#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/reference.h"

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

base::TokenId MustSample(const std::vector<float>& logits, const api::SamplingParams& params,
                         std::uint64_t position) {
  SamplerScratch scratch;
  const absl::StatusOr<base::TokenId> sampled = Sample(logits, params, {}, position, scratch);
  EXPECT_TRUE(sampled.ok()) << sampled.status();
  return sampled.value_or(-1);
}

TEST(SamplerTest, GreedyTakesTheLowestOfEqualLogits) {
  for (const std::size_t size : {1U, 7U, 8U, 9U, 31U}) {
    for (std::size_t first = 0; first < size; ++first) {
      std::vector<float> logits(size, -1.0F);
      for (std::size_t i = first; i < size; ++i) {
        logits[i] = 2.0F;
      }
      EXPECT_EQ(MustSample(logits, Params(0.0F), 3), static_cast<base::TokenId>(first));
      EXPECT_EQ(MustSample(logits, Params(1.0F, 1), 3), static_cast<base::TokenId>(first)) << "top_k = 1";
    }
  }
}

TEST(SamplerTest, GreedyDependsOnNeitherSeedNorPosition) {
  const std::vector<float> logits = RandomLogits(500, 3);
  const base::TokenId id = MustSample(logits, Params(0.0F), 0);
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(MustSample(logits, Params(0.0F, 5, 0.5F, 0.1F, i), i), id);
  }
}

TEST(SamplerTest, SameSeedAndPositionGiveTheSameToken) {
  const std::vector<float> logits = RandomLogits(200, 1);
  SamplerScratch used;  // an old scratch must not leak into a result
  for (std::uint64_t position = 0; position < 200; ++position) {
    const api::SamplingParams params = Params(1.0F, position % 2 == 0 ? 0 : 40, 0.95F, 0.0F, 99);
    const absl::StatusOr<base::TokenId> first = Sample(logits, params, {}, position, used);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(*first, MustSample(logits, params, position));
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
      return static_cast<std::size_t>(MustSample(logits, Params(1.0F, 0, 1.0F, 0.0F, seed), position));
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
      seen.insert(MustSample(logits, params, position));
    }
    EXPECT_THAT(seen, ::testing::IsSubsetOf({1, 3}));
  }
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
        EXPECT_EQ(MustSample(logits, params, position), 1);
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
      ++counts[static_cast<std::size_t>(MustSample(logits, Params(0.7F), position))];
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
    const absl::StatusOr<base::TokenId> sampled =
        Sample(logits, Params(1.0F, 0, 0.6F), {}, position, scratch);
    ASSERT_TRUE(sampled.ok());
    ++counts[static_cast<std::size_t>(*sampled)];
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
    return Sample(logits, Params(temperature), {}, 0, scratch).status();
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
  api::SamplingParams penalties = Params(1.0F);
  penalties.repetition_penalty = 1.1F;
  const api::SampleContext context = {.tokens = {1}, .num_prompt = 1, .masked = {}};
  ASSERT_TRUE(Sample(logits, Params(1.0F, 0, 0.9F), {}, 0, scratch).ok());
  ASSERT_TRUE(Sample(logits, penalties, context, 0, scratch).ok());
  const std::vector<const void*> places = {scratch.weights.data(), scratch.candidates.data(),
                                           scratch.adjust.logits.data(), scratch.adjust.uses.data(),
                                           scratch.adjust.seen.data()};
  for (std::uint64_t position = 0; position < 50; ++position) {
    penalties.top_p = 0.99F;
    penalties.min_p = 1e-4F;
    penalties.top_k = position % 3 == 0 ? 0 : static_cast<std::int32_t>(position * 10);
    api::SampleContext longer;
    for (base::TokenId id = 0; id < static_cast<base::TokenId>(20 * position); ++id) {
      longer.tokens.push_back(id);
    }
    ASSERT_TRUE(Sample(logits, penalties, longer, position, scratch).ok());
    ASSERT_TRUE(Score(logits, 3, 20, scratch).ok());
  }
  EXPECT_THAT(places, ::testing::ElementsAre(scratch.weights.data(), scratch.candidates.data(),
                                             scratch.adjust.logits.data(), scratch.adjust.uses.data(),
                                             scratch.adjust.seen.data()));
}

TEST(SamplerTest, NothingIsCopiedForNothing) {
  SamplerScratch scratch;
  ASSERT_TRUE(Sample(RandomLogits(100, 1), Params(0.0F), {}, 0, scratch).ok());
  EXPECT_TRUE(scratch.weights.empty()) << "a greedy draw weighs nothing";
  ASSERT_TRUE(Sample(RandomLogits(100, 1), Params(1.0F), {}, 0, scratch).ok());
  EXPECT_TRUE(scratch.adjust.logits.empty());
  EXPECT_TRUE(scratch.candidates.empty());
}

TEST(FindHighestTest, TheLowestOfEqualsInEveryBlockAndLane) {
  for (const std::size_t size : {1U, 8U, 511U, 512U, 513U, 1500U}) {
    for (std::size_t first = 0; first < size; first += 1 + size / 90) {
      std::vector<float> logits(size, -1.0F);
      for (std::size_t i = first; i < size; i += 7) {
        logits[i] = 2.0F;
      }
      const HighestLogit highest = FindHighest(logits);
      EXPECT_EQ(highest.index, first);
      EXPECT_EQ(highest.value, 2.0F);
      EXPECT_FALSE(highest.any_nan);
      logits[size - 1 - first] = kNaN;
      EXPECT_TRUE(FindHighest(logits).any_nan);
    }
  }
}

}  // namespace
}  // namespace comoe::sampling
