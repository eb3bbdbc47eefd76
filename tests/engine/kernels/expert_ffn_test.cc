// ExpertFfn against the reference and against itself: which rows an expert has, and beside which experts it
// is called, must not show.
#include "engine/kernels/expert_ffn.h"

#include <cmath>
#include <deque>
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

TEST(ExpertFfnTest, NothingToDo) {
  const TestStream one(1);
  Matrix none(0, 8);
  for (const KernelTable& table : AllCpuKernels()) {
    EXPECT_TRUE(ExpertFfn(table, {none.view(), {}, none.view(), none.view()}, *one).ok());
  }
}

}  // namespace
}  // namespace comoe::kernels
