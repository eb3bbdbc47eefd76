// AppendKv and Attention: against a plain softmax in double, over head sizes, groups, windows and block
// tables; and the promise that neither chunks nor neighbours show.
#include "engine/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;
constexpr tensor::DType kKvDTypes[] = {tensor::DType::kF32, tensor::DType::kF16};

struct Shape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t dim = 16;
  std::int64_t window = 0;
  tensor::DType kv = tensor::DType::kF32;

  std::string ToString() const {
    return absl::StrCat("H=", heads, " G=", kv_heads, " P=", dim, " window=", window, " KV ",
                        tensor::DTypeName(kv));
  }
};

// The whole history of one sequence, and a shuffled pool of blocks full of NaN to put it in.
class History {
 public:
  History(const Shape& shape, std::int64_t length, std::uint64_t stream)
      : shape_(shape),
        random_(stream),
        queries_(length, shape.heads * shape.dim, random_),
        keys_(length, shape.kv_heads * shape.dim, random_),
        values_(length, shape.kv_heads * shape.dim, random_) {
    const std::int64_t blocks = (length + kBlock - 1) / kBlock;
    for (std::int64_t b = 0; b < blocks; ++b) {
      blocks_.push_back(base::BlockId{static_cast<std::int32_t>(b + 3)});
    }
    for (std::int64_t b = blocks - 1; b > 0; --b) {
      std::swap(blocks_[static_cast<std::size_t>(b)],
                blocks_[static_cast<std::size_t>(random_.Below(b + 1))]);
    }
    const tensor::KvLayout layout = {shape.kv_heads, shape.dim, shape.kv};
    pool_.assign(static_cast<std::size_t>(blocks + 4) * layout.block_bytes(), std::byte{0xff});  // NaN
    kv_ = {pool_.data(), blocks + 4, layout};
  }

  std::int64_t length() const { return queries_.rows(); }

  // Appends and attends rows [first, first + count), as one step does.
  void Step(const KernelTable& table, const TestStream& stream, std::int64_t first, std::int64_t count,
            Matrix& out) {
    // Blocks that lie before the window are gone.
    std::vector<base::BlockId> blocks = blocks_;
    if (shape_.window > 0) {
      const std::int64_t needed = std::max<std::int64_t>(0, first - shape_.window + 1) / kBlock;
      std::fill(blocks.begin(), blocks.begin() + needed, base::kNoBlock);
    }
    const SequenceRows rows = {0, count, first, blocks};
    absl::Status status =
        AppendKv(table, {keys_.view().Rows(first, count), values_.view().Rows(first, count), {&rows, 1}, kv_},
                 *stream);
    ASSERT_TRUE(status.ok()) << status;
    status = Attention(table,
                       {queries_.view().Rows(first, count),
                        {&rows, 1},
                        kv_,
                        shape_.heads,
                        shape_.window,
                        scale(),
                        out.view().Rows(first, count)},
                       *stream);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Chunks of the given sizes, in order.
  Matrix Run(const KernelTable& table, const TestStream& stream, const std::vector<std::int64_t>& chunks) {
    Matrix out(length(), shape_.heads * shape_.dim);
    std::int64_t first = 0;
    for (const std::int64_t count : chunks) {
      Step(table, stream, first, count, out);
      first += count;
    }
    EXPECT_TRUE(out.CanariesLive());
    return out;
  }

  // What the pool holds of a key or value.
  double Stored(float value) const {
    return shape_.kv == tensor::DType::kF16 ? tensor::F16ToFloat(tensor::FloatToFiniteF16(value)) : value;
  }

  // In double, over all positions at once, of the keys and values as they are stored.
  Matrix Exact() const {
    Matrix out(length(), shape_.heads * shape_.dim);
    for (std::int64_t i = 0; i < length(); ++i) {
      for (std::int64_t h = 0; h < shape_.heads; ++h) {
        const std::int64_t kv = h / (shape_.heads / shape_.kv_heads) * shape_.dim;
        const std::int64_t first = shape_.window == 0 ? 0 : std::max<std::int64_t>(0, i - shape_.window + 1);
        std::vector<double> weights;
        for (std::int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (std::int64_t p = 0; p < shape_.dim; ++p) {
            score += static_cast<double>(queries_.at(i, h * shape_.dim + p)) * Stored(keys_.at(j, kv + p));
          }
          weights.push_back(score * scale());
        }
        const double maximum = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) {
          weight = std::exp(weight - maximum);
          sum += weight;
        }
        for (std::int64_t p = 0; p < shape_.dim; ++p) {
          double value = 0;
          for (std::int64_t j = first; j <= i; ++j) {
            value += weights[static_cast<std::size_t>(j - first)] / sum * Stored(values_.at(j, kv + p));
          }
          out.at(i, h * shape_.dim + p) = static_cast<float>(value);
        }
      }
    }
    return out;
  }

  // A score is off by (P/2 + 2) roundings of scale |q| |k| <= scale P, and so is a weight, relatively; a
  // value is a mean of numbers below 1 with one rounding of its sum a position.
  double Tolerance() const {
    const double dim = static_cast<double>(shape_.dim);
    const double score = (dim + 4.0) * static_cast<double>(scale()) * dim;
    return 2.0 * kEpsilon * (score + static_cast<double>(length()) + 8.0);
  }

  float scale() const { return 2.0F / std::sqrt(static_cast<float>(shape_.dim)); }
  tensor::KvView& kv() { return kv_; }
  Matrix& queries() { return queries_; }
  Matrix& keys() { return keys_; }
  Matrix& values() { return values_; }
  const std::vector<base::BlockId>& blocks() const { return blocks_; }

 private:
  Shape shape_;
  Random random_;
  Matrix queries_;
  Matrix keys_;
  Matrix values_;
  std::vector<base::BlockId> blocks_;
  std::vector<std::byte> pool_;
  tensor::KvView kv_;
};

std::vector<const KernelTable*> AllTables() {
  std::vector<const KernelTable*> tables = {&RefKernels()};
  for (const KernelTable& table : AllCpuKernels()) {
    tables.push_back(&table);
  }
  return tables;
}

// As close for binary16 as for float32: the judge reads the same rounded keys and values.
void ExpectExact(Shape shape, std::int64_t length) {
  const TestStream one(1);
  for (const tensor::DType kv : kKvDTypes) {
    shape.kv = kv;
    History history(shape, length, static_cast<std::uint64_t>(shape.dim * 100 + length));
    const Matrix exact = history.Exact();
    for (const KernelTable* table : AllTables()) {
      const Matrix out = history.Run(*table, one, {length});
      ASSERT_EQ(WorstElement(out, exact, [&](auto, auto) { return history.Tolerance(); }), "")
          << table->name << " " << shape.ToString() << " length " << length;
    }
  }
}

TEST(PagedAttentionTest, EveryHeadSize) {
  for (std::int64_t dim = 1; dim <= 40; ++dim) {
    ExpectExact({2, 1, dim, 0}, 21);
  }
  for (const std::int64_t dim : {48, 64, 80, 96, 128, 130, 256, 576}) {
    ExpectExact({2, 1, dim, 0}, 37);
  }
}

TEST(PagedAttentionTest, EveryGroup) {
  for (const std::int64_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33}) {
    ExpectExact({group * 2, 2, 24, 0}, 40);
  }
}

TEST(PagedAttentionTest, EveryLength) {
  for (std::int64_t length = 1; length <= 50; ++length) {
    ExpectExact({4, 2, 16, 0}, length);
  }
  ExpectExact({4, 2, 32, 0}, 300);
}

TEST(PagedAttentionTest, EveryWindow) {
  for (std::int64_t window = 1; window <= 50; ++window) {
    ExpectExact({4, 2, 16, window}, 70);
  }
}

TEST(PagedAttentionTest, ChunksDoNotShow) {
  const TestStream one(1);
  for (const std::int64_t window : {0, 1, 8, 16, 19, 40}) {
    for (const Shape& shape :
         {Shape{6, 2, 24, window}, Shape{6, 2, 64, window}, Shape{6, 2, 64, window, tensor::DType::kF16}}) {
      constexpr std::int64_t kLength = 83;
      History history(shape, kLength, 9);
      std::vector<std::int64_t> singles(kLength, 1);
      for (const KernelTable* table : AllTables()) {
        const Matrix whole = history.Run(*table, one, {kLength});
        const std::vector<std::int64_t> chunkings[] = {
            singles, {5, 1, 17, 32, 1, 27}, {16, 16, 16, 16, 19}, {80, 3}};
        for (const auto& chunks : chunkings) {
          ASSERT_EQ(FirstDifference(history.Run(*table, one, chunks), whole, kLength), "")
              << table->name << " " << shape.ToString();
        }
      }
    }
  }
}

TEST(PagedAttentionTest, ThreadsAndTargetsDoNotShow) {
  const TestStream one(1);
  const TestStream two(2);
  const TestStream three(3);
  for (const tensor::DType kv : kKvDTypes) {
    History history({8, 2, 64, 0, kv}, 700, 4);
    const Matrix judge = history.Run(CpuKernels(), one, {700});
    EXPECT_EQ(FirstDifference(history.Run(CpuKernels(), two, {700}), judge, 700), "");
    EXPECT_EQ(FirstDifference(history.Run(CpuKernels(), three, {699, 1}), judge, 700), "");
    for (const KernelTable& table : AllCpuKernels()) {
      if (HasFma(table) && HasFma(CpuKernels())) {
        EXPECT_EQ(FirstDifference(history.Run(table, one, {700}), judge, 700), "") << table.name;
      }
    }
  }
}

// Two sequences in one call, with rows of nobody between them, give each what it gives alone.
TEST(PagedAttentionTest, SequencesDoNotMix) {
  const TestStream one(1);
  const Shape shape = {4, 2, 24, 0};
  History a(shape, 50, 1);
  History b(shape, 40, 2);
  for (const KernelTable* table : AllTables()) {
    const Matrix alone_a = a.Run(*table, one, {47, 3});
    const Matrix alone_b = b.Run(*table, one, {30, 10});
    // Both in one pool: b's blocks behind a's.
    const std::int64_t a_blocks = a.kv().num_blocks;
    std::vector<std::byte> pool(a.kv().data, a.kv().block({static_cast<std::int32_t>(a_blocks)}));
    pool.insert(pool.end(), b.kv().data, b.kv().block({static_cast<std::int32_t>(b.kv().num_blocks)}));
    std::vector<base::BlockId> b_blocks = b.blocks();
    for (base::BlockId& block : b_blocks) {
      block.value += static_cast<std::int32_t>(a_blocks);
    }
    Matrix queries(15, shape.heads * shape.dim);
    for (std::int64_t c = 0; c < queries.cols(); ++c) {
      for (std::int64_t r = 0; r < 3; ++r) {
        queries.at(11 + r, c) = a.queries().at(47 + r, c);
      }
      for (std::int64_t r = 0; r < 10; ++r) {
        queries.at(r, c) = b.queries().at(30 + r, c);
      }
    }
    const SequenceRows rows[] = {{11, 3, 47, a.blocks()}, {0, 10, 30, b_blocks}, {14, 0, 0, {}}};
    Matrix out(15, queries.cols());
    const tensor::KvView kv = {pool.data(), a_blocks + b.kv().num_blocks, a.kv().layout};
    ASSERT_TRUE(
        Attention(*table, {queries.view(), rows, kv, shape.heads, 0, a.scale(), out.view()}, *one).ok());
    for (std::int64_t c = 0; c < queries.cols(); ++c) {
      for (std::int64_t r = 0; r < 3; ++r) {
        ASSERT_TRUE(SameBits(out.at(11 + r, c), alone_a.at(47 + r, c))) << table->name;
      }
      for (std::int64_t r = 0; r < 10; ++r) {
        ASSERT_TRUE(SameBits(out.at(r, c), alone_b.at(30 + r, c))) << table->name;
      }
      ASSERT_EQ(out.at(10, c), kCanary) << "a row of nobody was written";
      ASSERT_EQ(out.at(14, c), kCanary) << "a row of nobody was written";
    }
  }
}

// A later row of the same chunk that is Inf or NaN does not reach the rows before it, whichever rows share a
// tile.
TEST(PagedAttentionTest, LaterRowsDoNotShow) {
  const TestStream one(1);
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t heads : {1, 2, 3, 4, 5}) {
      for (const KernelTable* table : AllTables()) {
        History history({heads, 1, 32, 0}, 30, 6);
        const Matrix clean = history.Run(*table, one, {30});
        for (std::int64_t c = 0; c < 32; ++c) {
          history.keys().at(21, c) = poison;
          history.values().at(21, c) = poison;
        }
        EXPECT_EQ(FirstDifference(history.Run(*table, one, {30}), clean, 21), "")
            << table->name << " H=" << heads;
      }
    }
  }
}

bool IsNanRow(const Matrix& out, std::int64_t r) {
  for (std::int64_t c = 0; c < out.cols(); ++c) {
    if (!std::isnan(out.at(r, c))) {
      return false;
    }
  }
  return true;
}

// A NaN key makes every row that sees it NaN, and no other row: in a step, and one row at a time.
TEST(PagedAttentionTest, NanKeyShows) {
  const TestStream one(1);
  constexpr std::int64_t kLength = 53;
  for (const std::int64_t heads : {1, 3, 8}) {
    for (const std::int64_t window : {0, 1, 20}) {
      for (const Shape& shape :
           {Shape{heads, 1, 5, window}, Shape{heads, 1, 32, window}, Shape{heads, 1, 258, window},
            Shape{heads, 1, 32, window, tensor::DType::kF16}}) {
        for (const std::int64_t bad : {0, 7, 15, 16, 33, 52}) {
          for (const KernelTable* table : AllTables()) {
            History history(shape, kLength, 6);
            const Matrix clean = history.Run(*table, one, {kLength});
            history.keys().at(bad, shape.dim / 2) = std::numeric_limits<float>::quiet_NaN();
            for (const auto& chunks :
                 {std::vector<std::int64_t>{kLength}, std::vector<std::int64_t>(kLength, 1)}) {
              const Matrix out = history.Run(*table, one, chunks);
              for (std::int64_t r = 0; r < kLength; ++r) {
                const bool sees = r >= bad && (window == 0 || r - bad < window);
                ASSERT_EQ(IsNanRow(out, r), sees)
                    << table->name << " " << shape.ToString() << " key " << bad << " row " << r;
                for (std::int64_t c = 0; !sees && c < out.cols(); ++c) {
                  ASSERT_TRUE(SameBits(out.at(r, c), clean.at(r, c))) << table->name << " row " << r;
                }
              }
            }
          }
        }
      }
    }
  }
}

// A NaN in a query makes that head of that row NaN, and nothing else.
TEST(PagedAttentionTest, NanQueryShows) {
  const TestStream one(1);
  constexpr std::int64_t kDim = 24;
  for (const KernelTable* table : AllTables()) {
    for (const std::int64_t bad : {0, 9, 31}) {
      History history({4, 2, kDim, 0}, 32, 6);
      const Matrix clean = history.Run(*table, one, {32});
      history.queries().at(bad, 2 * kDim + 3) = std::numeric_limits<float>::quiet_NaN();
      const Matrix out = history.Run(*table, one, {32});
      for (std::int64_t r = 0; r < 32; ++r) {
        for (std::int64_t c = 0; c < out.cols(); ++c) {
          const bool spoilt = r == bad && c / kDim == 2;
          ASSERT_TRUE(spoilt ? std::isnan(out.at(r, c)) : SameBits(out.at(r, c), clean.at(r, c)))
              << table->name << " [" << r << ", " << c << "]";
        }
      }
    }
  }
}

// Scores far apart: the maximum moves in steps that underflow exp.
TEST(PagedAttentionTest, LargeScores) {
  const TestStream one(1);
  for (const KernelTable* table : AllTables()) {
    History history({2, 1, 16, 0}, 60, 8);
    for (std::int64_t r = 0; r < 60; ++r) {
      for (std::int64_t c = 0; c < 16; ++c) {
        history.keys().at(r, c) *= static_cast<float>((r * 37) % 60);
        history.queries().at(r, c) *= 20.0F;
      }
    }
    const Matrix exact = history.Exact();
    const Matrix out = history.Run(*table, one, {60});
    // Scores reach 2 / sqrt(16) * 16 * 60 * 20 = 9600; a few of their roundings go into a weight's exponent.
    EXPECT_EQ(WorstElement(out, exact, [](auto, auto) { return 8.0 * 9600.0 * kEpsilon; }), "")
        << table->name;
  }
}

// What a half cannot hold is stored as its largest value, so that answers are imprecise and not NaN.
TEST(PagedAttentionTest, HalfKeysAndValuesSaturate) {
  const TestStream one(1);
  for (const KernelTable* table : AllTables()) {
    History history({2, 1, 24, 0, tensor::DType::kF16}, 20, 5);
    history.values().at(3, 7) = 1e30F;
    history.values().at(3, 8) = -std::numeric_limits<float>::infinity();
    history.values().at(3, 9) = 0x1.8p-24F;  // between two subnormals
    const Matrix exact = history.Exact();
    const Matrix out = history.Run(*table, one, {20});
    EXPECT_EQ(WorstElement(out, exact,
                           [&](auto, std::int64_t c) {
                             return history.Tolerance() * (c % 24 == 7 || c % 24 == 8 ? 65504.0 : 1.0);
                           }),
              "")
        << table->name;
  }
}

TEST(PagedAttentionTest, NoRows) {
  const TestStream one(1);
  const Shape shape = {2, 1, 16, 0};
  History history(shape, 4, 1);
  Matrix none(0, 32);
  Matrix none_kv(0, 16);
  for (const KernelTable* table : AllTables()) {
    EXPECT_TRUE(AppendKv(*table, {none_kv.view(), none_kv.view(), {}, history.kv()}, *one).ok());
    EXPECT_TRUE(Attention(*table, {none.view(), {}, history.kv(), 2, 0, 1.0F, none.view()}, *one).ok());
  }
}

}  // namespace
}  // namespace comoe::kernels
