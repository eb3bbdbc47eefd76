// Draws from the highest logits of a row against draws from all of them: the very same token, the same error.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/base/rng.h"
#include "engine/sampling/sampler.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/reference.h"

namespace comoe::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t Next() { return base::RandomBits(seed_, counter_++); }
  std::size_t Below(std::size_t bound) { return static_cast<std::size_t>(Next() % bound); }

 private:
  const std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

struct Best {
  std::vector<base::TokenId> ids;
  std::vector<float> values;
  BestLogits view() const { return {ids, values}; }
};

// As kernels::TopLogits shall order them.
Best FindBest(const std::vector<float>& logits, std::size_t k) {
  Best best;
  best.ids.resize(logits.size());
  std::iota(best.ids.begin(), best.ids.end(), 0);
  const auto at = [&](base::TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(best.ids.begin(), best.ids.end(), [&](base::TokenId a, base::TokenId b) {
    return at(a) > at(b) || (std::isnan(at(a)) && !std::isnan(at(b)));
  });
  best.ids.resize(k);
  for (const base::TokenId id : best.ids) {
    best.values.push_back(at(id) + 0.0F);  // of zeros, the device keeps the positive one
  }
  return best;
}

// Logits like a model's, some of them with many equals, some masked, some with what must be refused.
std::vector<float> Logits(std::size_t vocab, Random& random) {
  std::vector<float> logits = RandomLogits(vocab, random.Next());
  const std::size_t kind = random.Below(8);
  for (float& x : logits) {
    if (kind == 0) {
      x = std::floor(x);
    } else if (kind == 1 && random.Below(3) == 0) {
      x = -kInfinity;
    } else if (kind == 2) {
      x *= 30.0F;  // most weights are 0
    } else if (kind == 3) {
      x = random.Below(2) == 0 ? -0.0F : 0.0F;
    }
  }
  if (kind == 4) {
    const std::vector<float> bad = {std::numeric_limits<float>::quiet_NaN(), kInfinity};
    logits[random.Below(vocab)] = bad[random.Below(2)];
  } else if (kind == 5 && random.Below(4) == 0) {
    logits.assign(vocab, -kInfinity);
  }
  return logits;
}

TEST(SampleFromBestTest, GivesTheTokenOfTheWholeRow) {
  Random random(11);
  SamplerScratch scratch;
  SamplerScratch best_scratch;
  int refused = 0;
  int drawn = 0;
  for (int i = 0; i < 40000; ++i) {
    const std::size_t vocab = 2 + random.Below(i % 10 == 0 ? 3000 : 150);
    const std::vector<float> logits = Logits(vocab, random);
    api::SamplingParams params;
    params.temperature = random.Below(4) == 0 ? 0.0F : 0.05F + static_cast<float>(random.Below(195)) / 100.0F;
    params.top_k = static_cast<std::int32_t>(1 + random.Below(std::min<std::size_t>(vocab - 1, kMostBest)));
    params.top_p = random.Below(2) == 0 ? 1.0F : 0.01F + static_cast<float>(random.Below(99)) / 100.0F;
    params.seed = random.Next();
    const auto needed = static_cast<std::size_t>(BestNeeded(params, {}, static_cast<std::int64_t>(vocab)));
    ASSERT_EQ(needed, params.greedy() ? 1U : static_cast<std::size_t>(params.top_k));
    // More may be there than this row needs, for others' sake.
    const Best best = FindBest(logits, std::min(vocab, needed + random.Below(3) * 20));
    const std::uint64_t position = random.Below(5000);
    const absl::StatusOr<base::TokenId> want = Sample(logits, params, {}, position, scratch);
    const absl::StatusOr<base::TokenId> got =
        SampleFromBest(best.view(), static_cast<std::int64_t>(vocab), params, position, best_scratch);
    ASSERT_EQ(want.status(), got.status());
    if (want.ok()) {
      ASSERT_EQ(*want, *got) << "vocab " << vocab << ", top_k " << params.top_k << ", top_p " << params.top_p
                             << ", temperature " << params.temperature;
    }
    ++(want.ok() ? drawn : refused);
  }
  EXPECT_GT(drawn, 30000);
  EXPECT_GT(refused, 3000);
}

TEST(SampleFromBestTest, WhatNeedsTheWholeRow) {
  const auto needed = [](auto change, const api::SampleContext& context = {}) {
    api::SamplingParams params;
    params.temperature = 1.0F;
    params.top_k = 40;
    change(params);
    return BestNeeded(params, context, 1000);
  };
  const auto none = [](api::SamplingParams& /*params*/) {};
  EXPECT_EQ(needed(none), 40);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.top_k = 64; }), 64);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.top_p = 0.9F; }), 40);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.temperature = 0.0F; }), 1);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.top_k = 65; }), 0);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.top_k = 0; }), 0);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.top_k = 1000; }), 0);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.min_p = 0.1F; }), 0);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.presence_penalty = 0.5F; }), 0);
  EXPECT_EQ(needed([](api::SamplingParams& params) { params.logit_bias = {{3, 1.0F}}; }), 0);
  EXPECT_EQ(needed(none, {.tokens = {}, .num_prompt = 0, .masked = {7}}), 0);
}

TEST(SampleFromBestTest, NoLogitsAreRefused) {
  SamplerScratch scratch;
  EXPECT_TRUE(absl::IsInternal(SampleFromBest({}, 10, {}, 0, scratch).status()));
}

}  // namespace
}  // namespace comoe::sampling
