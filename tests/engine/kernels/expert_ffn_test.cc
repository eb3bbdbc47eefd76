// ExpertFfn against the reference and against itself: which rows an expert has, and beside which experts it
// is called, must not show.
#include "engine/kernels/expert_ffn.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

// Experts with their rows and everything that a call needs.
class Bench {
 public:
  // Expert e has counts[e] rows, drawn from `x_rows`, in a random order and with repeats.
  Bench(tensor::DType dtype, std::int64_t hidden, std::int64_t intermediate, std::int64_t x_rows,
        const std::vector<std::int64_t>& counts)
      : layout_(tensor::BlobLayout::Make(dtype, hidden, intermediate)),
        random_(static_cast<std::uint64_t>(hidden * 1000 + intermediate)),
        x_(x_rows, hidden, random_) {
    rows_.resize(counts.size());
    for (std::size_t e = 0; e < counts.size(); ++e) {
      blobs_.emplace_back(layout_, random_);
      for (std::int64_t i = 0; i < counts[e]; ++i) {
        rows_[e].push_back(static_cast<std::int32_t>(random_.Below(x_rows)));
      }
      work_.push_back({blobs_.back().view(), rows_[e], total_});
      total_ += counts[e];
    }
  }

  Matrix Run(const KernelTable& table, const TestStream& stream) { return Run(table, stream, work_); }
  Matrix Run(const KernelTable& table, const TestStream& stream, absl::Span<const ExpertRows> work) {
    Matrix scratch(total_, layout_.gate_up.n / 2);
    Matrix y(total_, layout_.hidden);
    const absl::Status status = ExpertFfn(table, {x_.view(), work, scratch.view(), y.view()}, *stream);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(y.CanariesLive() && scratch.CanariesLive()) << table.name;
    return y;
  }

  const std::vector<ExpertRows>& work() const { return work_; }
  std::int64_t total() const { return total_; }
  // sum over F of |w_down| |h| for each result, from the reference's own numbers, bounds what roundings can
  // do.
  double Bound(const Matrix& judge, std::int64_t r) const {
    double norm = 0;
    for (std::int64_t c = 0; c < judge.cols(); ++c) {
      norm += std::pow(judge.at(r, c), 2.0);
    }
    const double depth = static_cast<double>(layout_.hidden + layout_.intermediate);
    return 4.0 * kEpsilon * (depth + 16.0) * (std::sqrt(norm / static_cast<double>(judge.cols())) + 1.0);
  }

 private:
  tensor::BlobLayout layout_;
  Random random_;
  Matrix x_;
  std::deque<Expert> blobs_;
  std::vector<std::vector<std::int32_t>> rows_;
  std::vector<ExpertRows> work_;
  std::int64_t total_ = 0;
};

TEST(ExpertFfnTest, MatchesTheReference) {
  const TestStream one(1);
  struct {
    std::int64_t hidden, intermediate;
  } const shapes[] = {{1, 1},   {2, 3},   {15, 16}, {16, 17}, {17, 15},  {31, 48},
                      {40, 40}, {64, 24}, {63, 33}, {96, 48}, {256, 48}, {130, 96}};
  for (const tensor::DType dtype : kDTypes) {
    for (const auto& shape : shapes) {
      Bench bench(dtype, shape.hidden, shape.intermediate, 9, {1, 3, 0, 2, 20, 5, 33});
      const Matrix judge = bench.Run(RefKernels(), one);
      for (const KernelTable& table : AllCpuKernels()) {
        const Matrix y = bench.Run(table, one);
        ASSERT_EQ(WorstElement(y, judge, [&](std::int64_t r, auto) { return bench.Bound(judge, r); }), "")
            << table.name << " D=" << shape.hidden << " F=" << shape.intermediate;
      }
    }
  }
}

TEST(ExpertFfnTest, TargetsWithFmaAgree) {
  const TestStream one(1);
  for (const tensor::DType dtype : kDTypes) {
    Bench bench(dtype, 96, 48, 9, {1, 3, 20});
    const Matrix judge = bench.Run(CpuKernels(), one);
    for (const KernelTable& table : AllCpuKernels()) {
      if (HasFma(table) && HasFma(CpuKernels())) {
        EXPECT_EQ(FirstDifference(bench.Run(table, one), judge, bench.total()), "") << table.name;
      }
    }
  }
}

// One thread, two and three; many even experts (whole ones are tasks), one that has most rows, and few.
TEST(ExpertFfnTest, ThreadsDoNotShow) {
  const TestStream one(1);
  const TestStream two(2);
  const TestStream three(3);
  const std::vector<std::int64_t> counts[] = {std::vector<std::int64_t>(24, 6), {300, 1, 0, 2}, {1, 1}, {40}};
  for (const auto& count : counts) {
    Bench bench(tensor::DType::kBf16, 512, 352, 50, count);
    const Matrix judge = bench.Run(CpuKernels(), one);
    EXPECT_EQ(FirstDifference(bench.Run(CpuKernels(), two), judge, bench.total()), "");
    EXPECT_EQ(FirstDifference(bench.Run(CpuKernels(), three), judge, bench.total()), "");
  }
}

// A row's result is the same when its expert has no other row and no other expert is called.
TEST(ExpertFfnTest, NeighboursDoNotShow) {
  const TestStream one(1);
  for (const tensor::DType dtype : kDTypes) {
    Bench bench(dtype, 70, 48, 20, {7, 1, 30});
    for (const KernelTable& table : AllCpuKernels()) {
      const Matrix all = bench.Run(table, one);
      for (const ExpertRows& work : bench.work()) {
        for (std::size_t i = 0; i < work.rows.size(); ++i) {
          const std::int64_t at = work.first_out + static_cast<std::int64_t>(i);
          const ExpertRows alone = {work.expert, work.rows.subspan(i, 1), at};
          const Matrix y = bench.Run(table, one, {&alone, 1});
          for (std::int64_t c = 0; c < y.cols(); ++c) {
            ASSERT_TRUE(SameBits(y.at(at, c), all.at(at, c))) << table.name << " row " << at;
          }
          if (at > 0) {
            ASSERT_EQ(y.at(at - 1, 0), kCanary) << "a row of nobody was written";
          }
        }
      }
    }
  }
}

// silu(gate) * up, seen through matrices of zeros and ones: an expert whose gate is [1 0], whose up is [0 1]
// and whose down is [1; 0] takes x = (gates, ups) of F values each to y = (silu(gates) * ups, 0).
class ActivationTest : public testing::TestWithParam<tensor::DType> {
 protected:
  static constexpr std::int64_t kWidth = 40;  // panels of 16: two, and half of one

  ActivationTest() {
    const std::int64_t hidden = 2 * kWidth;
    std::vector<float> gate(static_cast<std::size_t>(kWidth * hidden));
    std::vector<float> up = gate;
    std::vector<float> down = gate;
    for (std::int64_t f = 0; f < kWidth; ++f) {
      gate[static_cast<std::size_t>(f * hidden + f)] = 1.0F;
      up[static_cast<std::size_t>(f * hidden + kWidth + f)] = 1.0F;
      down[static_cast<std::size_t>(f * kWidth + f)] = 1.0F;
    }
    expert_ = std::make_unique<Expert>(layout_, gate, up, down);
  }

  // Row r of the result is row r of x, activated.
  Matrix Run(const KernelTable& table, Matrix& x) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(x.rows()));
    std::iota(rows.begin(), rows.end(), 0);
    const ExpertRows work = {expert_->view(), rows, 0};
    Matrix scratch(x.rows(), layout_.gate_up.n / 2);
    Matrix y(x.rows(), layout_.hidden);
    EXPECT_TRUE(ExpertFfn(table, {x.view(), {&work, 1}, scratch.view(), y.view()}, *one_).ok());
    EXPECT_TRUE(y.CanariesLive() && scratch.CanariesLive()) << table.name;
    return y;
  }

  static std::vector<KernelTable> AllTables() {
    std::vector<KernelTable> tables = {RefKernels()};
    tables.insert(tables.end(), AllCpuKernels().begin(), AllCpuKernels().end());
    return tables;
  }

 private:
  const TestStream one_{1};
  const tensor::BlobLayout layout_ = tensor::BlobLayout::Make(GetParam(), 2 * kWidth, kWidth);
  std::unique_ptr<Expert> expert_;
};

// Against double, 1e-6 relative where nothing is subnormal: gates from -85, where silu is -1e-35, to 85,
// where it is the identity; by the row and by tiles of rows.
TEST_P(ActivationTest, IsAccurate) {
  constexpr std::int64_t kRows = 100;
  Random random(12);
  Matrix x(kRows, 2 * kWidth, random);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t f = 0; f < kWidth; ++f) {
      x.at(r, f) =
          (static_cast<float>(f * kRows + r) / static_cast<float>(kRows * kWidth - 1) - 0.5F) * 170.0F;
      float& up = x.at(r, kWidth + f);
      up += std::copysign(0.5F, up);
    }
  }
  for (const KernelTable& table : AllTables()) {
    const Matrix y = Run(table, x);
    double worst = 0;
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t f = 0; f < kWidth; ++f) {
        const double gate = x.at(r, f);
        const double exact = gate / (1.0 + std::exp(-gate)) * x.at(r, kWidth + f);
        const double error = std::fabs(y.at(r, f) - exact) / (std::fabs(exact) + 1e-36);
        worst = std::isnan(error) ? error : std::max(worst, error);
        ASSERT_EQ(y.at(r, kWidth + f), 0.0F) << table.name;
      }
    }
    EXPECT_LT(worst, 1e-6) << table.name;
    for (const std::int64_t r : {0, 57, 99}) {
      Matrix alone(1, 2 * kWidth);
      std::copy_n(&x.at(r, 0), 2 * kWidth, &alone.at(0, 0));
      const Matrix one_row = Run(table, alone);
      for (std::int64_t c = 0; c < 2 * kWidth; ++c) {
        ASSERT_TRUE(SameBits(one_row.at(0, c), y.at(r, c))) << table.name << " row " << r;
      }
    }
  }
}

// Beyond that range exp overflows or vanishes: results are gate * up or next to nothing, never NaN.
TEST_P(ActivationTest, EndsAreTame) {
  const float ends[] = {-1e30F, -1e4F,  -1000.0F, -300.0F, -177.0F, -128.0F, -105.0F, -104.0F,
                        -89.0F, -88.0F, -0.0F,    0.0F,    88.0F,   89.0F,   104.0F,  1e30F};
  Matrix x(1, 2 * kWidth);
  for (std::int64_t f = 0; f < kWidth; ++f) {
    x.at(0, f) = ends[static_cast<std::size_t>(f) % std::size(ends)];
    x.at(0, kWidth + f) = 2.0F;
  }
  for (const KernelTable& table : AllTables()) {
    const Matrix y = Run(table, x);
    for (std::int64_t f = 0; f < kWidth; ++f) {
      const float gate = x.at(0, f);
      EXPECT_NEAR(y.at(0, f), gate > 0 ? 2.0F * gate : 0.0F, gate > 0 ? 1e-6F * gate : 1e-35F)
          << table.name << " gate " << gate;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ActivationTest, testing::ValuesIn(kDTypes),
                         [](const auto& test) { return std::string(tensor::DTypeName(test.param)); });

TEST(ExpertFfnTest, NothingToDo) {
  const TestStream one(1);
  Matrix none(0, 8);
  for (const KernelTable& table : AllCpuKernels()) {
    EXPECT_TRUE(ExpertFfn(table, {none.view(), {}, none.view(), none.view()}, *one).ok());
  }
}

}  // namespace
}  // namespace comoe::kernels
