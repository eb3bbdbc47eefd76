#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/sampling/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/reference.h"

namespace comoe::sampling {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

api::LogprobRow MustScore(const std::vector<float>& logits, base::TokenId id, std::int32_t num_top) {
  SamplerScratch scratch;
  absl::StatusOr<api::LogprobRow> row = Score(logits, id, num_top, scratch);
  EXPECT_TRUE(row.ok()) << row.status();
  return row.ok() ? *std::move(row) : api::LogprobRow{};
}

std::vector<base::TokenId> TopIds(const std::vector<float>& logits, std::int32_t num_top) {
  std::vector<base::TokenId> ids;
  for (const api::TokenLogprob& token : MustScore(logits, 0, num_top).top) {
    ids.push_back(token.id);
  }
  return ids;
}

TEST(ScoreTest, AgreesWithLogSoftmaxInDouble) {
  SamplerScratch scratch;
  for (const std::size_t vocab : {1U, 2U, 7U, 100U, 3001U, 150000U}) {
    const std::vector<float> logits = RandomLogits(vocab, vocab);
    const std::vector<double> want = LogSoftmax(logits);
    for (std::uint64_t n = 0; n < 10; ++n) {
      const auto id = static_cast<base::TokenId>(base::RandomBits(4, n) % vocab);
      const absl::StatusOr<api::LogprobRow> row = Score(logits, id, 20, scratch);
      ASSERT_TRUE(row.ok()) << row.status();
      EXPECT_NEAR(row->logprob, want[static_cast<std::size_t>(id)], 2e-6);
      ASSERT_EQ(row->top.size(), std::min<std::size_t>(20, vocab));
      for (const api::TokenLogprob& token : row->top) {
        EXPECT_NEAR(token.logprob, want[static_cast<std::size_t>(token.id)], 2e-6);
      }
    }
  }
}

TEST(ScoreTest, TopIsTheLikeliestFirstTheLowerIdAmongEquals) {
  EXPECT_THAT(TopIds({1.0F, 3.0F, 2.0F, 3.0F, 2.0F, 2.0F}, 4), ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(TopIds({1.0F, 3.0F, 2.0F}, 0), ElementsAre());
  EXPECT_THAT(TopIds({1.0F, 3.0F, 2.0F}, 20), ElementsAre(1, 2, 0)) << "there are no more";
  EXPECT_THAT(TopIds(std::vector<float>(50, 0.5F), 3), ElementsAre(0, 1, 2));
  for (std::uint64_t n = 0; n < 2000; ++n) {  // coarse: many are equal
    std::vector<float> logits(1 + base::RandomBits(n, 0) % 60);
    std::vector<Candidate> order;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(base::RandomBits(n, i + 1) % 8);
      order.push_back({logits[i], static_cast<base::TokenId>(i)});
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    order.resize(std::min<std::size_t>(order.size(), base::RandomBits(n, 99) % 21));
    std::vector<base::TokenId> want;
    for (const Candidate& candidate : order) {
      want.push_back(candidate.id);
    }
    ASSERT_EQ(TopIds(logits, static_cast<std::int32_t>(want.size())), want) << n;
  }
}

TEST(ScoreTest, ExtremeLogits) {
  const float lowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(MustScore({-1e30F, 1e30F}, 1, 0).logprob, 0.0F);
  EXPECT_EQ(MustScore({lowest, -lowest}, 0, 0).logprob, -kInfinity) << "beyond the floats";
  for (const float level : {0.0F, 1e30F, -1e30F}) {
    EXPECT_NEAR(MustScore(std::vector<float>(10, level), 4, 0).logprob, -std::log(10.0), 1e-6);
  }
  const api::LogprobRow row = MustScore({-kInfinity, -3.0F}, 0, 2);
  EXPECT_EQ(row.logprob, -kInfinity);
  EXPECT_EQ(row.top[0].id, 1);
  EXPECT_EQ(row.top[0].logprob, 0.0F);
  EXPECT_EQ(row.top[1].logprob, -kInfinity);
}

TEST(ScoreTest, RefusesWhatIsNoDistribution) {
  SamplerScratch scratch;
  for (const std::vector<float>& logits :
       {std::vector<float>{0.0F, std::numeric_limits<float>::quiet_NaN()},
        std::vector<float>{0.0F, kInfinity}, std::vector<float>{-kInfinity, -kInfinity}}) {
    EXPECT_EQ(Score(logits, 0, 2, scratch).status().code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace comoe::sampling
