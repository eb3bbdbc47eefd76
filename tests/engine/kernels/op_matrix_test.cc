// Every op but the matrix products and attention (matmul_test.cc, expert_ffn_test.cc,
// paged_attention_test.cc): each CPU table against the reference, over sizes across every remainder of lanes.
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/ops.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kCols[] = {1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16,  17,  20,  23,  24,
                                  25, 31, 32, 33, 39, 40, 48, 63, 64, 96, 128, 255, 256, 1031};
constexpr std::int64_t kRows[] = {0, 1, 2, 5, 17};

class OpMatrixTest : public testing::Test {
 protected:
  // Rows are computed alike together and apart, by one thread and by two.
  template <class RunRange>
  void ExpectRowsIndependent(const Matrix& all, const RunRange& run_range) {
    for (std::int64_t r = 0; r < all.rows(); ++r) {
      const Matrix alone = run_range(r);
      for (std::int64_t c = 0; c < all.cols(); ++c) {
        ASSERT_TRUE(SameBits(all.at(r, c), alone.at(0, c))) << "row " << r;
      }
    }
  }

  TestStream one_{1};
  TestStream two_{2};
};

TEST_F(OpMatrixTest, Embed) {
  for (const tensor::DType dtype : kDTypes) {
    for (const std::int64_t k : kCols) {
      Random random(static_cast<std::uint64_t>(k));
      const Weight table_weight(dtype, 37, k, random);
      const std::vector<base::TokenId> ids = {0, 36, 16, 15, 17, 3, 3};
      const auto rows = static_cast<std::int64_t>(ids.size());
      Matrix judge(rows, k);
      ASSERT_TRUE(Embed(RefKernels(), {ids, table_weight.view(), judge.view()}, *one_).ok());
      for (const KernelTable& table : AllCpuKernels()) {
        Matrix out(rows, k);
        ASSERT_TRUE(Embed(table, {ids, table_weight.view(), out.view()}, *two_).ok());
        ASSERT_EQ(FirstDifference(out, judge, rows), "") << table.name << " K=" << k;
        ASSERT_TRUE(out.CanariesLive());
      }
    }
  }
}

TEST_F(OpMatrixTest, RmsNorm) {
  for (const std::int64_t width : kCols) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t groups : {1, 3}) {
        Random random(static_cast<std::uint64_t>(width * 100 + rows));
        Matrix x(rows, groups * width, random);
        Matrix weight(1, width, random, 0);
        RmsNormArgs args{x.view(), {weight.view().f32(), static_cast<std::size_t>(width)}, 1e-5F, groups, {}};
        Matrix judge(rows, groups * width);
        args.y = judge.view();
        ASSERT_TRUE(RmsNorm(RefKernels(), args, *one_).ok());
        // The sum of squares has `width` roundings on either side, all terms positive; then four more.
        const auto tolerance = [&](std::int64_t r, std::int64_t c) {
          return 2.0 * kEpsilon * (static_cast<double>(width) / 2.0 + 5.0) * std::fabs(judge.at(r, c)) +
                 1e-30;
        };
        for (const KernelTable& table : AllCpuKernels()) {
          Matrix y(rows, groups * width);
          args.y = y.view();
          ASSERT_TRUE(RmsNorm(table, args, *two_).ok());
          ASSERT_EQ(WorstElement(y, judge, tolerance), "") << table.name << " W=" << width << " T=" << rows;
          ASSERT_TRUE(y.CanariesLive());
          // In place.
          Matrix same = x;
          args.x = same.view();
          args.y = same.view();
          ASSERT_TRUE(RmsNorm(table, args, *one_).ok());
          ASSERT_EQ(FirstDifference(same, y, rows), "") << table.name;
          args.x = x.view();
          ExpectRowsIndependent(y, [&](std::int64_t r) {
            Matrix alone(1, groups * width);
            RmsNormArgs row = args;
            row.x = x.view().Rows(r, 1);
            row.y = alone.view();
            EXPECT_TRUE(RmsNorm(table, row, *one_).ok());
            return alone;
          });
        }
      }
    }
  }
}

TEST_F(OpMatrixTest, Rope) {
  for (const std::int64_t half : kCols) {
    for (const std::int64_t rows : kRows) {
      constexpr std::int64_t kHeads = 3;
      Random random(static_cast<std::uint64_t>(half * 100 + rows));
      Matrix x(rows, kHeads * 2 * half, random);
      Matrix cos(rows, half, random);
      Matrix sin(rows, half, random);
      Matrix judge = x;
      ASSERT_TRUE(Rope(RefKernels(), {judge.view(), kHeads, cos.view(), sin.view()}, *one_).ok());
      for (const KernelTable& table : AllCpuKernels()) {
        Matrix y = x;
        ASSERT_TRUE(Rope(table, {y.view(), kHeads, cos.view(), sin.view()}, *two_).ok());
        // Two products of numbers below 1 and their sum.
        ASSERT_EQ(WorstElement(y, judge, [](auto, auto) { return 6.0 * kEpsilon; }), "") << table.name;
        ASSERT_TRUE(y.CanariesLive());
      }
    }
  }
}

// Where no table has a launch for them, heads are norms and rotations; an addition comes before its norm.
TEST_F(OpMatrixTest, HeadsAndAdditionsAreTheirParts) {
  constexpr std::int64_t kQueries = 3;
  constexpr std::int64_t kKeys = 2;
  constexpr std::int64_t kDim = 34;
  for (const bool normed : {false, true}) {
    Random random(7);
    Matrix x(4, (kQueries + kKeys) * kDim, random);
    Matrix cos(4, kDim / 2, random);
    Matrix sin(4, kDim / 2, random);
    Matrix norms(2, kDim, random);
    const absl::Span<const float> first(norms.view().f32(0), normed ? kDim : 0);
    const absl::Span<const float> second(norms.view().f32(1), normed ? kDim : 0);
    for (const KernelTable& table : AllCpuKernels()) {
      Matrix parts = x;
      const tensor::TensorView queries = parts.view().Cols(0, kQueries * kDim);
      const tensor::TensorView keys = parts.view().Cols(kQueries * kDim, kKeys * kDim);
      if (normed) {
        ASSERT_TRUE(RmsNorm(table, {queries, first, 1e-5F, kQueries, queries}, *two_).ok());
        ASSERT_TRUE(RmsNorm(table, {keys, second, 1e-5F, kKeys, keys}, *two_).ok());
      }
      ASSERT_TRUE(Rope(table, {queries, kQueries, cos.view(), sin.view()}, *two_).ok());
      ASSERT_TRUE(Rope(table, {keys, kKeys, cos.view(), sin.view()}, *two_).ok());
      Matrix whole = x;
      ASSERT_TRUE(
          Heads(table, {whole.view(), kQueries, kKeys, first, second, 1e-5F, cos.view(), sin.view()}, *two_)
              .ok());
      EXPECT_EQ(FirstDifference(whole, parts, 4), "") << table.name;
    }
  }
  Random random(8);
  Matrix add(4, kDim, random);
  const Matrix start(4, kDim, random);
  Matrix weight(1, kDim, random);
  const absl::Span<const float> span(weight.view().f32(0), kDim);
  for (const KernelTable& table : AllCpuKernels()) {
    Matrix sum = start;
    Matrix judge(4, kDim);
    ASSERT_TRUE(Add(table, {add.view(), sum.view()}, *two_).ok());
    ASSERT_TRUE(RmsNorm(table, {sum.view(), span, 1e-5F, 1, judge.view()}, *two_).ok());
    Matrix x = start;
    Matrix y(4, kDim);
    RmsNormArgs args{x.view(), span, 1e-5F, 1, y.view()};
    args.add = add.view();
    ASSERT_TRUE(RmsNorm(table, args, *two_).ok());
    EXPECT_EQ(FirstDifference(x, sum, 4), "") << table.name;
    EXPECT_EQ(FirstDifference(y, judge, 4), "") << table.name;
  }
}

TEST_F(OpMatrixTest, RopeTurns) {
  Matrix x(1, 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    x.at(0, i) = static_cast<float>(i + 1);  // (1, 3) and (2, 4)
  }
  Matrix cos(1, 2);
  Matrix sin(1, 2);
  cos.at(0, 0) = 0;  // a quarter turn
  sin.at(0, 0) = 1;
  cos.at(0, 1) = 1;  // none
  sin.at(0, 1) = 0;
  ASSERT_TRUE(Rope(CpuKernels(), {x.view(), 1, cos.view(), sin.view()}, *one_).ok());
  EXPECT_EQ(x.at(0, 0), -3.0F);
  EXPECT_EQ(x.at(0, 1), 2.0F);
  EXPECT_EQ(x.at(0, 2), 1.0F);
  EXPECT_EQ(x.at(0, 3), 4.0F);
}

TEST_F(OpMatrixTest, Add) {
  for (const std::int64_t cols : kCols) {
    for (const std::int64_t rows : kRows) {
      Random random(static_cast<std::uint64_t>(cols * 100 + rows));
      Matrix x(rows, cols, random);
      const Matrix start(rows, cols, random);
      Matrix judge = start;
      ASSERT_TRUE(Add(RefKernels(), {x.view(), judge.view()}, *one_).ok());
      for (const KernelTable& table : AllCpuKernels()) {
        Matrix y = start;
        ASSERT_TRUE(Add(table, {x.view(), y.view()}, *two_).ok());
        ASSERT_EQ(FirstDifference(y, judge, rows), "") << table.name;
        ASSERT_TRUE(y.CanariesLive());
      }
    }
  }
}

// Every kind of value, each at every place of a register over the rows, between random ones.
TEST_F(OpMatrixTest, Clamp) {
  using Limits = std::numeric_limits<float>;
  constexpr float kLimit = 0.25F;
  const float specials[] = {Limits::quiet_NaN(),
                            -Limits::quiet_NaN(),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::max(),
                            Limits::lowest(),
                            Limits::denorm_min(),
                            -0.0F,
                            kLimit,
                            -kLimit,
                            0.0F};
  constexpr std::int64_t kSpecials = std::size(specials);
  for (const std::int64_t cols : kCols) {
    for (const std::int64_t rows : kRows) {
      Random random(static_cast<std::uint64_t>(cols * 100 + rows));
      Matrix start(rows, cols, random);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = r % 2; c < cols; c += 2) {
          start.at(r, c) = specials[(r + c) % kSpecials];
        }
      }
      for (const float limit : {kLimit, Limits::denorm_min(), Limits::infinity()}) {
        Matrix judge = start;
        ASSERT_TRUE(Clamp(RefKernels(), {judge.view(), limit}, *one_).ok());
        for (const KernelTable& table : AllCpuKernels()) {
          Matrix x = start;
          ASSERT_TRUE(Clamp(table, {x.view(), limit}, *two_).ok());
          ASSERT_EQ(FirstDifference(x, judge, rows), "") << table.name << " D=" << cols << " limit " << limit;
          ASSERT_TRUE(x.CanariesLive());
        }
      }
    }
  }
}

// What the reference itself gives, NaN by its bits.
TEST_F(OpMatrixTest, ClampLimits) {
  using Limits = std::numeric_limits<float>;
  const float nan = Limits::quiet_NaN();
  const float infinity = Limits::infinity();
  const float above = std::nextafter(0.5F, 1.0F);
  const float below = std::nextafter(0.5F, 0.0F);
  const float tiny = Limits::denorm_min();
  const std::vector<std::pair<float, float>> cases = {{nan, nan},
                                                      {-nan, -nan},
                                                      {infinity, 0.5F},
                                                      {-infinity, -0.5F},
                                                      {0.0F, 0.0F},
                                                      {-0.0F, -0.0F},
                                                      {0.5F, 0.5F},
                                                      {-0.5F, -0.5F},
                                                      {above, 0.5F},
                                                      {-above, -0.5F},
                                                      {below, below},
                                                      {-below, -below},
                                                      {Limits::max(), 0.5F},
                                                      {Limits::lowest(), -0.5F},
                                                      {tiny, tiny},
                                                      {-tiny, -tiny},
                                                      {1.0F, 0.5F}};
  Matrix start(1, static_cast<std::int64_t>(cases.size()));
  Matrix expected = start;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    start.at(0, static_cast<std::int64_t>(i)) = cases[i].first;
    expected.at(0, static_cast<std::int64_t>(i)) = cases[i].second;
  }
  std::vector<KernelTable> tables = {RefKernels()};
  tables.insert(tables.end(), AllCpuKernels().begin(), AllCpuKernels().end());
  for (const KernelTable& table : tables) {
    Matrix x = start;
    ASSERT_TRUE(Clamp(table, {x.view(), 0.5F}, *one_).ok());
    EXPECT_EQ(FirstDifference(x, expected, 1), "") << table.name;
  }
}

TEST_F(OpMatrixTest, MoeCombine) {
  for (const std::int64_t cols : kCols) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t terms : {0, 1, 4}) {
        for (const int shared_kind : {0, 1, 2}) {
          Random random(static_cast<std::uint64_t>(cols * 100 + rows + terms));
          Matrix y(std::max<std::int64_t>(1, rows * terms), cols, random);
          Matrix shared(rows, cols, random);
          Matrix gate(rows, 1, random);
          const Matrix start(rows, cols, random);
          std::vector<std::int32_t> source(static_cast<std::size_t>(rows * terms));
          std::vector<float> weights(source.size());
          for (std::size_t i = 0; i < source.size(); ++i) {
            source[i] = static_cast<std::int32_t>(random.Below(y.rows()));
            weights[i] = random.Uniform();
          }
          MoeCombineArgs args{y.view(), source, weights, {}, {}, {}};
          if (shared_kind > 0) {
            args.shared = shared.view();
          }
          if (shared_kind > 1) {
            args.shared_gate = gate.view();
          }
          Matrix judge = start;
          args.out = judge.view();
          ASSERT_TRUE(MoeCombine(RefKernels(), args, *one_).ok());
          for (const KernelTable& table : AllCpuKernels()) {
            Matrix out = start;
            args.out = out.view();
            ASSERT_TRUE(MoeCombine(table, args, *two_).ok());
            // At most 6 terms below 1, each rounded twice.
            ASSERT_EQ(WorstElement(out, judge, [](auto, auto) { return 6.0 * 6.0 * kEpsilon; }), "")
                << table.name;
            ASSERT_TRUE(out.CanariesLive());
          }
        }
      }
    }
  }
}

class MoeGateTest : public OpMatrixTest {
 protected:
  struct Choice {
    std::vector<std::int32_t> experts;
    std::vector<float> weights;
  };
  Choice Choose(const KernelTable& table, Matrix& logits, std::int64_t k, bool normalize) {
    const auto size = static_cast<std::size_t>(logits.rows() * k);
    Choice choice{std::vector<std::int32_t>(size, -1), std::vector<float>(size, kCanary)};
    EXPECT_TRUE(
        MoeGate(table,
                {logits.view(), k, normalize, absl::MakeSpan(choice.experts), absl::MakeSpan(choice.weights)},
                *two_)
            .ok());
    return choice;
  }
};

TEST_F(MoeGateTest, MatchesTheReference) {
  for (const std::int64_t experts : kCols) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t k : {1, 2, 8}) {
        if (k > experts) {
          continue;
        }
        Random random(static_cast<std::uint64_t>(experts * 100 + rows));
        Matrix logits(rows, experts, random);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t e = 0; e < experts; ++e) {
            logits.at(r, e) *= 8.0F;
          }
        }
        for (const bool normalize : {false, true}) {
          const Choice judge = Choose(RefKernels(), logits, k, normalize);
          for (const KernelTable& table : AllCpuKernels()) {
            const Choice choice = Choose(table, logits, k, normalize);
            ASSERT_EQ(choice.experts, judge.experts) << table.name << " E=" << experts;
            for (std::size_t i = 0; i < judge.weights.size(); ++i) {
              // E additions of positive terms, two exps of 1 and 2 ulp, two divisions.
              const double limit = judge.weights[i] * kEpsilon * (static_cast<double>(experts) + 16.0);
              ASSERT_NEAR(choice.weights[i], judge.weights[i], limit) << table.name << " E=" << experts;
            }
          }
        }
      }
    }
  }
}

TEST_F(MoeGateTest, EqualsAndNan) {
  Matrix logits(4, 6);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float rows[4][6] = {
      {1, 3, 3, 2, 3, 0}, {5, 5, 5, 5, 5, 5}, {nan, 1, nan, 2, nan, nan}, {0, -90, 0, 3, -80, 3}};
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t e = 0; e < 6; ++e) {
      logits.at(r, e) = rows[r][e];
    }
  }
  const std::vector<std::int32_t> expected = {1, 2, 4, 3, 0, 1, 2, 3, 3, 1, 0, 2, 3, 5, 0, 2};
  EXPECT_EQ(Choose(RefKernels(), logits, 4, true).experts, expected);
  for (const KernelTable& table : AllCpuKernels()) {
    EXPECT_EQ(Choose(table, logits, 4, true).experts, expected) << table.name;
  }
}

TEST_F(MoeGateTest, WeightsAddUp) {
  Random random(3);
  Matrix logits(9, 33, random);
  for (const KernelTable& table : AllCpuKernels()) {
    const Choice all = Choose(table, logits, 33, false);
    const Choice some = Choose(table, logits, 5, true);
    for (std::size_t r = 0; r < 9; ++r) {
      EXPECT_NEAR(std::accumulate(&all.weights[r * 33], &all.weights[r * 33] + 33, 0.0), 1.0, 1e-5);
      EXPECT_NEAR(std::accumulate(&some.weights[r * 5], &some.weights[r * 5] + 5, 0.0), 1.0, 1e-6);
      EXPECT_EQ(std::set<std::int32_t>(&all.experts[r * 33], &all.experts[r * 33] + 33).size(), 33U);
    }
  }
}

// Large enough for the pool: the same bits from one thread and from two.
TEST_F(OpMatrixTest, ThreadsDoNotShow) {
  Random random(1);
  Matrix x(700, 1040, random);
  const Matrix start(700, 1040, random);
  Matrix weight(1, 1040, random, 0);
  Matrix cos(700, 13, random);
  Matrix sin(700, 13, random);
  std::vector<std::int32_t> source(700 * 3);
  std::vector<float> weights(700 * 3);
  for (std::size_t i = 0; i < source.size(); ++i) {
    source[i] = static_cast<std::int32_t>(random.Below(700));
    weights[i] = random.Uniform();
  }
  const auto run = [&](const TestStream& stream) {
    Matrix norm = start;
    Matrix clamped = start;
    const KernelTable& t = CpuKernels();
    EXPECT_TRUE(RmsNorm(t, {x.view(), {weight.view().f32(), 1040}, 1e-6F, 1, norm.view()}, *stream).ok());
    EXPECT_TRUE(Rope(t, {norm.view(), 40, cos.view(), sin.view()}, *stream).ok());
    EXPECT_TRUE(Add(t, {x.view(), norm.view()}, *stream).ok());
    EXPECT_TRUE(Clamp(t, {clamped.view(), 0.5F}, *stream).ok());
    EXPECT_TRUE(MoeCombine(t,
                           {clamped.view().Cols(8, 512), source, weights, {}, {}, norm.view().Cols(5, 512)},
                           *stream)
                    .ok());
    return norm;
  };
  EXPECT_EQ(FirstDifference(run(one_), run(two_), 700), "");
}

}  // namespace
}  // namespace comoe::kernels
