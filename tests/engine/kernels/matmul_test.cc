// MatMul against the reference over shapes across every remainder of lanes, panels and tiles; and the promise
// that a row's bits depend on nothing but the row.
#include "engine/kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kMostRows = 64;

std::vector<std::int64_t> Sweep(std::int64_t up_to, std::vector<std::int64_t> more) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(up_to));
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), more.begin(), more.end());
  return sizes;
}

struct Case {
  tensor::DType dtype = tensor::DType::kBf16;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool bias = false;

  std::string ToString() const {
    return absl::StrCat(std::string(tensor::DTypeName(dtype)), " N=", n, " K=", k, bias ? " bias" : "");
  }
};

// Both sides sum K/2 products in each of two chains: a bound of (K/2 + 2) roundings of sum |x w| <= |x| |w|
// each.
struct Tolerance {
  const Matrix& x;
  tensor::PackedMatrixView w;

  double operator()(std::int64_t r, std::int64_t n) const {
    double xx = 0;
    double ww = 0;
    for (std::int64_t k = 0; k < w.layout.k; ++k) {
      xx += std::pow(x.at(r, k), 2.0);
      ww += std::pow(tensor::WeightAt(w, n, k), 2.0);
    }
    return 2.0 * kEpsilon * (static_cast<double>(w.layout.k) / 2.0 + 3.0) * (std::sqrt(xx * ww) + 1.0);
  }
};

class MatMulTest : public testing::Test {
 protected:
  // Runs every row count of `rows` on every table; the reference runs once, with the most rows.
  void Check(const Case& c, const std::vector<std::int64_t>& rows, bool all_tables) {
    Random random(static_cast<std::uint64_t>(c.n * 10'000 + c.k * 10) + static_cast<std::uint64_t>(c.dtype));
    const std::int64_t most = *std::max_element(rows.begin(), rows.end());
    Matrix x(most, c.k, random);
    const Weight w(c.dtype, c.n, c.k, random);
    std::vector<float> bias(c.bias ? static_cast<std::size_t>(c.n) : 0);
    std::generate(bias.begin(), bias.end(), [&] { return random.Uniform(); });
    Matrix judge(most, c.n);
    ASSERT_TRUE(MatMul(RefKernels(), {x.view(), w.view(), bias, judge.view()}, *one_).ok());
    for (const KernelTable& table : AllCpuKernels()) {
      if (!all_tables && !HasFma(table)) {
        continue;
      }
      for (const std::int64_t m : rows) {
        Matrix y(m, c.n);
        ASSERT_TRUE(MatMul(table, {x.view().Rows(0, m), w.view(), bias, y.view()}, *one_).ok());
        ASSERT_TRUE(y.CanariesLive()) << table.name << " " << c.ToString() << " M=" << m;
        const std::string difference =
            HasFma(table) ? FirstDifference(y, judge, m) : WorstElement(y, judge, Tolerance{x, w.view()});
        ASSERT_EQ(difference, "") << table.name << " " << c.ToString() << " M=" << m;
      }
    }
  }

  TestStream one_{1};
};

TEST_F(MatMulTest, EveryInputCount) {
  for (const tensor::DType dtype : kDTypes) {
    for (const std::int64_t k : Sweep(40, {48, 63, 64, 96, 256})) {
      for (const std::int64_t n : {1, 16, 17, 40, 96}) {
        Check({dtype, n, k, n == 17}, {1, 2, 3, 4, 5, 7, 12, 13, 20}, k % 8 == 1);
      }
    }
  }
}

TEST_F(MatMulTest, EveryOutputCount) {
  for (const tensor::DType dtype : kDTypes) {
    for (const std::int64_t n : Sweep(40, {48, 63, 64, 80, 96, 112, 128, 256})) {
      for (const std::int64_t k : {1, 6, 33}) {
        Check({dtype, n, k, k == 6}, {1, 2, 3, 4, 6, 11, 14}, n % 8 == 1);
      }
    }
  }
}

TEST_F(MatMulTest, EveryRowCount) {
  for (const tensor::DType dtype : kDTypes) {
    for (const std::int64_t n : {1, 48, 130}) {
      for (const std::int64_t k : {7, 48}) {
        Check({dtype, n, k, false}, Sweep(20, {33, kMostRows}), true);
      }
    }
  }
}

// Longer than what is packed at once, more panels than wait on the stack, more than a block in the cache.
TEST_F(MatMulTest, RunsAndBlocks) {
  for (const tensor::DType dtype : kDTypes) {
    Check({dtype, 330, 2049, true}, {1, 2, 5, 12, 29}, false);
    Check({dtype, 24, 6200, false}, {1, 2, 3, 4, 7, 12}, false);
  }
  Check({tensor::DType::kF32, 600, 1024, false}, {26}, false);
}

// The same bits for every number of threads, where the work is large enough to be cut: by panels and by rows.
TEST_F(MatMulTest, ThreadsDoNotShow) {
  const TestStream two(2);
  const TestStream three(3);
  struct {
    std::int64_t m, n, k;
  } const shapes[] = {{1, 2048, 1024}, {5, 1500, 1027}, {200, 96, 512}, {300, 17, 700}, {64, 640, 256}};
  for (const tensor::DType dtype : kDTypes) {
    for (const auto& shape : shapes) {
      Random random(7);
      Matrix x(shape.m, shape.k, random);
      const Weight w(dtype, shape.n, shape.k, random);
      Matrix y(shape.m, shape.n);
      ASSERT_TRUE(MatMul(CpuKernels(), {x.view(), w.view(), {}, y.view()}, *one_).ok());
      for (const TestStream* stream : {&two, &three}) {
        Matrix other(shape.m, shape.n);
        ASSERT_TRUE(MatMul(CpuKernels(), {x.view(), w.view(), {}, other.view()}, **stream).ok());
        EXPECT_EQ(FirstDifference(y, other, shape.m), "") << "M=" << shape.m << " N=" << shape.n;
        EXPECT_TRUE(other.CanariesLive());
      }
    }
  }
}

// A row among others, with an Inf and a NaN row beside it, has the bits that it has alone.
TEST_F(MatMulTest, NeighboursDoNotShow) {
  Random random(11);
  Matrix x(64, 129, random);
  for (std::int64_t k = 0; k < 129; ++k) {
    x.at(3, k) = std::numeric_limits<float>::infinity();
    x.at(40, k) = std::numeric_limits<float>::quiet_NaN();
  }
  for (const tensor::DType dtype : kDTypes) {
    const Weight w(dtype, 70, 129, random);
    for (const KernelTable& table : AllCpuKernels()) {
      Matrix all(64, 70);
      ASSERT_TRUE(MatMul(table, {x.view(), w.view(), {}, all.view()}, *one_).ok());
      for (const std::int64_t r : {0, 2, 4, 17, 39, 41, 63}) {
        Matrix alone(64, 70);
        ASSERT_TRUE(MatMul(table, {x.view().Rows(r, 1), w.view(), {}, alone.view().Rows(r, 1)}, *one_).ok());
        for (std::int64_t n = 0; n < 70; ++n) {
          ASSERT_TRUE(SameBits(all.at(r, n), alone.at(r, n))) << table.name << " row " << r;
        }
      }
    }
  }
}

TEST_F(MatMulTest, ReferenceIsCloseToDouble) {
  for (const tensor::DType dtype : kDTypes) {
    Random random(5);
    Matrix x(3, 301, random);
    const Weight w(dtype, 20, 301, random);
    Matrix y(3, 20);
    ASSERT_TRUE(MatMul(RefKernels(), {x.view(), w.view(), {}, y.view()}, *one_).ok());
    Matrix exact(3, 20);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t n = 0; n < 20; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < 301; ++k) {
          sum += static_cast<double>(x.at(r, k)) * static_cast<double>(tensor::WeightAt(w.view(), n, k));
        }
        exact.at(r, n) = static_cast<float>(sum);
      }
    }
    EXPECT_EQ(WorstElement(y, exact, Tolerance{x, w.view()}), "");
  }
}

TEST_F(MatMulTest, NoRows) {
  Random random(1);
  const Weight w(tensor::DType::kBf16, 5, 3, random);
  Matrix x(0, 3);
  Matrix y(0, 5);
  for (const KernelTable& table : AllCpuKernels()) {
    EXPECT_TRUE(MatMul(table, {x.view(), w.view(), {}, y.view()}, *one_).ok());
  }
}

}  // namespace
}  // namespace comoe::kernels
