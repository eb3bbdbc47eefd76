// Every op refuses arguments that do not fit, by name, before its kernel runs.
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const std::string& op, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(op + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

// A stream of some other kind of device.
class OtherStream final : public device::Stream {
 public:
  explicit OtherStream(device::DeviceKind kind) : kind_(kind) {}
  device::DeviceId device() const override { return {kind_, 0}; }
  absl::Status CopyAsync(std::byte*, const std::byte*, std::size_t) override { return absl::OkStatus(); }
  absl::StatusOr<device::Event> Record() override { return device::Event(); }
  absl::Status Wait(const device::Event&, base::WaitEdge, absl::Duration) override {
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  device::DeviceKind kind_;
};

class ValidationTest : public testing::Test {
 protected:
  // A table without entries: reaching a kernel would crash.
  const KernelTable none_{};
  TestStream stream_{1};
  Random random_{1};
  Matrix m34_{3, 4};
  Matrix m35_{3, 5};
  Matrix m44_{4, 4};
};

TEST_F(ValidationTest, Matrices) {
  Matrix same(3, 4);
  AddArgs args{m34_.view(), same.view()};
  args.x.dtype = tensor::DType::kBf16;
  ExpectRefused(Add(none_, args, *stream_), "Add", "x is BF16, not F32");
  args = {m34_.view(), same.view()};
  args.y.row_stride = 3;
  ExpectRefused(Add(none_, args, *stream_), "Add", "y has rows of 4 at a stride of 3");
  args = {m34_.view(), same.view()};
  args.x.data = nullptr;
  ExpectRefused(Add(none_, args, *stream_), "Add", "x has no data");
  ExpectRefused(Add(none_, {m35_.view(), same.view()}, *stream_), "Add", "x is [3, 5], not [3, 4]");
  ExpectRefused(Add(none_, {m44_.view(), same.view()}, *stream_), "Add", "x is [4, 4], not [3, 4]");
}

TEST_F(ValidationTest, Clamp) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float limit : {0.0F, -0.0F, -1.0F, -infinity, nan, -nan}) {
    ExpectRefused(Clamp(none_, {m34_.view(), limit}, *stream_), "Clamp", "not above 0");
  }
  ClampArgs args{m34_.view(), 1.0F};
  args.x.dtype = tensor::DType::kF16;
  ExpectRefused(Clamp(none_, args, *stream_), "Clamp", "x is F16, not F32");
  args = {m34_.view(), 1.0F};
  args.x.row_stride = 3;
  ExpectRefused(Clamp(none_, args, *stream_), "Clamp", "x has rows of 4 at a stride of 3");
  args = {m34_.view(), 1.0F};
  args.x.data = nullptr;
  ExpectRefused(Clamp(none_, args, *stream_), "Clamp", "x has no data");
}

TEST_F(ValidationTest, Weights) {
  const Weight w(tensor::DType::kBf16, 5, 4, random_);
  MatMulArgs args{m34_.view(), w.view(), {}, m35_.view()};
  args.w.data += 2;
  ExpectRefused(MatMul(none_, args, *stream_), "MatMul", "w is not aligned");
  args.w.data = nullptr;
  ExpectRefused(MatMul(none_, args, *stream_), "MatMul", "w has no data");
  args.w = w.view();
  args.w.layout.k = 0;
  ExpectRefused(MatMul(none_, args, *stream_), "MatMul", "w is [5, 0]");
}

TEST_F(ValidationTest, MatMul) {
  const Weight w(tensor::DType::kBf16, 5, 4, random_);
  const std::vector<float> bias(4);
  ExpectRefused(MatMul(none_, {m34_.view(), w.view(), bias, m35_.view()}, *stream_), "MatMul",
                "bias has 4 values, not 5");
  ExpectRefused(MatMul(none_, {m35_.view(), w.view(), {}, m35_.view()}, *stream_), "MatMul",
                "x is [3, 5], not [3, 4]");
  ExpectRefused(MatMul(none_, {m44_.view(), w.view(), {}, m35_.view()}, *stream_), "MatMul",
                "y is [3, 5], not [4, 5]");
}

TEST_F(ValidationTest, Embed) {
  const Weight w(tensor::DType::kBf16, 9, 4, random_);
  for (const base::TokenId bad : {-1, 9}) {
    const std::vector<base::TokenId> ids = {0, bad, 8};
    ExpectRefused(Embed(none_, {ids, w.view(), m34_.view()}, *stream_), "Embed", "is not one of 9");
  }
  const std::vector<base::TokenId> two = {0, 1};
  ExpectRefused(Embed(none_, {two, w.view(), m34_.view()}, *stream_), "Embed", "out is [3, 4], not [2, 4]");
}

TEST_F(ValidationTest, RmsNorm) {
  const std::vector<float> weight(4);
  Matrix y(3, 4);
  ExpectRefused(RmsNorm(none_, {m34_.view(), weight, 1e-6F, 0, y.view()}, *stream_), "RmsNorm",
                "0 groups of 4");
  ExpectRefused(RmsNorm(none_, {m34_.view(), {}, 1e-6F, 1, y.view()}, *stream_), "RmsNorm", "1 groups of 0");
  ExpectRefused(RmsNorm(none_, {m34_.view(), weight, 1e-6F, 2, y.view()}, *stream_), "RmsNorm",
                "x is [3, 4], not [3, 8]");
  RmsNormArgs more{m34_.view(), weight, 1e-6F, 1, y.view()};
  more.host_y = y.view();
  ExpectRefused(RmsNorm(none_, more, *stream_), "RmsNorm", "kernels do not write to host memory");
  more.host_y = m35_.view();
  ExpectRefused(RmsNorm(none_, more, *stream_), "RmsNorm", "host_y is [3, 5], not [3, 4]");
  more = {m34_.view(), absl::MakeConstSpan(weight).first(2), 1e-6F, 2, y.view()};
  more.add = y.view();
  ExpectRefused(RmsNorm(none_, more, *stream_), "RmsNorm", "an addition to 2 groups");
  more = {m34_.view(), weight, 1e-6F, 1, y.view()};
  more.add = m35_.view();
  KernelTable adds;
  adds.rms_norm_adds = true;
  ExpectRefused(RmsNorm(adds, more, *stream_), "RmsNorm", "add is [3, 5], not [3, 4]");
  ExpectRefused(RmsNorm(none_, more, *stream_), "Add", "x is [3, 5], not [3, 4]");
}

TEST_F(ValidationTest, Heads) {
  const std::vector<float> weight(4);
  Matrix x(3, 6);
  Matrix half(3, 1);
  const auto refused = [&](HeadsArgs args, const std::string& what) {
    ExpectRefused(Heads(none_, args, *stream_), "Heads", what);
  };
  const absl::Span<const float> two = absl::MakeConstSpan(weight).first(2);
  refused({x.view(), 0, 1, two, two, 1e-6F, half.view(), half.view()}, "not 0 and 1 heads");
  refused({x.view(), 2, 2, two, two, 1e-6F, half.view(), half.view()}, "6 columns are not 2 and 2");
  refused({x.view(), 2, 1, two, weight, 1e-6F, half.view(), half.view()}, "a norm of 4 for heads of 2");
  refused({x.view(), 2, 1, two, two, 1e-6F, half.view(), m34_.view()}, "sin is [3, 4], not [3, 1]");
}

TEST_F(ValidationTest, Rope) {
  Matrix half(3, 2);
  ExpectRefused(Rope(none_, {m35_.view(), 1, half.view(), half.view()}, *stream_), "Rope",
                "5 columns are not 1");
  ExpectRefused(Rope(none_, {m34_.view(), 0, half.view(), half.view()}, *stream_), "Rope", "0 heads");
  ExpectRefused(Rope(none_, {m34_.view(), 2, half.view(), half.view()}, *stream_), "Rope",
                "cos is [3, 2], not [3, 1]");
}

TEST_F(ValidationTest, Sequences) {
  const tensor::KvLayout layout = {1, 4};
  std::vector<std::byte> pool(3 * layout.block_bytes());
  const tensor::KvView kv = {pool.data(), 3, layout};
  Matrix values(3, 4);
  const std::vector<base::BlockId> two = {base::BlockId{2}, base::BlockId{0}};
  const std::vector<base::BlockId> gone = {base::kNoBlock, base::BlockId{0}};
  const std::vector<base::BlockId> foreign = {base::BlockId{0}, base::BlockId{3}};
  const auto append = [&](const SequenceRows& rows) {
    return AppendKv(none_, {m34_.view(), values.view(), {&rows, 1}, kv}, *stream_);
  };
  const auto attend = [&](const SequenceRows& rows, std::int64_t window) {
    return Attention(none_, {m34_.view(), {&rows, 1}, kv, 1, window, 1.0F, values.view()}, *stream_);
  };
  ExpectRefused(append({1, 3, 0, two}), "AppendKv", "3 rows from row 1 of 3");
  ExpectRefused(append({-1, 3, 0, two}), "AppendKv", "3 rows from row -1 of 3");
  ExpectRefused(append({0, 3, -1, two}), "AppendKv", "position -1");
  ExpectRefused(append({0, 3, 30, two}), "AppendKv", "positions up to 32 need 3 blocks, not 2");
  ExpectRefused(append({0, 3, 14, gone}), "AppendKv", "block 0 of a sequence is -1");
  ExpectRefused(append({0, 3, 14, foreign}), "AppendKv", "block 1 of a sequence is 3, not one of 3");
  ExpectRefused(attend({0, 3, 20, gone}, 0), "Attention", "block 0 of a sequence is -1");
  ExpectRefused(attend({0, 3, 20, gone}, 6), "Attention", "block 0 of a sequence is -1");  // 20 sees 15
  ExpectRefused(attend({0, 3, 20, two}, -1), "Attention", "a window of -1");
  const tensor::KvView nowhere = {nullptr, 3, layout};
  const AttentionArgs args = {m34_.view(), {}, nowhere, 1, 0, 1.0F, values.view()};
  ExpectRefused(Attention(none_, args, *stream_), "Attention", "the KV cache has no data");
  AttentionArgs bf16 = args;
  bf16.kv = {pool.data(), 3, {1, 4, tensor::DType::kBf16}};
  ExpectRefused(Attention(none_, bf16, *stream_), "Attention", "the KV cache is BF16, not F32 or F16");
}

TEST_F(ValidationTest, AttentionHeads) {
  const tensor::KvLayout layout = {2, 2};
  std::vector<std::byte> pool(layout.block_bytes());
  const tensor::KvView kv = {pool.data(), 1, layout};
  Matrix out(3, 4);
  ExpectRefused(Attention(none_, {m34_.view(), {}, kv, 3, 0, 1.0F, out.view()}, *stream_), "Attention",
                "3 query heads do not share 2 KV heads");
  ExpectRefused(Attention(none_, {m34_.view(), {}, kv, 4, 0, 1.0F, out.view()}, *stream_), "Attention",
                "queries is [3, 4], not [3, 8]");
}

TEST_F(ValidationTest, MoeGate) {
  std::vector<std::int32_t> experts(6);
  std::vector<float> weights(6);
  const auto gate = [&](std::int64_t k, std::size_t room) {
    return MoeGate(none_,
                   {m34_.view(), k, false, absl::MakeSpan(experts).first(room), absl::MakeSpan(weights)},
                   *stream_);
  };
  ExpectRefused(gate(0, 0), "MoeGate", "0 experts a row of 4");
  ExpectRefused(gate(5, 6), "MoeGate", "5 experts a row of 4");
  ExpectRefused(gate(2, 5), "MoeGate", "room for 5 experts and 6 weights, not 6");
}

TEST_F(ValidationTest, ExpertFfn) {
  const tensor::BlobLayout layout = tensor::BlobLayout::Make(tensor::DType::kBf16, 4, 20);
  const tensor::BlobLayout other = tensor::BlobLayout::Make(tensor::DType::kF16, 4, 20);
  const Expert expert(layout, random_);
  Matrix scratch(3, 32);
  const std::vector<std::int32_t> rows = {2, 0};
  const auto run = [&](const std::vector<ExpertRows>& work, Matrix& with_scratch) {
    return ExpertFfn(none_, {m34_.view(), work, with_scratch.view(), m34_.view()}, *stream_);
  };
  ExpectRefused(run({{{nullptr, &layout}, rows, 0}}, scratch), "ExpertFfn", "no blob");
  ExpectRefused(run({{{expert.view().data, nullptr}, rows, 0}}, scratch), "ExpertFfn", "no blob");
  ExpectRefused(run({{expert.view(), rows, 0}, {{expert.view().data, &other}, rows, 0}}, scratch),
                "ExpertFfn", "layouts differ");
  ExpectRefused(run({{expert.view(), rows, 2}}, scratch), "ExpertFfn", "2 rows from row 2 of y's 3");
  const std::vector<std::int32_t> outside = {3};
  ExpectRefused(run({{expert.view(), outside, 0}}, scratch), "ExpertFfn", "row 3 of x's 3");
  ExpectRefused(run({{expert.view(), rows, 0}}, m35_), "ExpertFfn", "scratch is [3, 5], not [3, 32]");
  tensor::BlobLayout broken = layout;
  broken.down.k = 21;
  ExpectRefused(run({{{expert.view().data, &broken}, rows, 0}}, scratch), "ExpertFfn", "do not fit together");
}

TEST_F(ValidationTest, MoeCombine) {
  std::vector<std::int32_t> source(6, 0);
  const std::vector<float> weights(6);
  Matrix out(3, 4);
  Matrix wide_gate(3, 2);
  ExpectRefused(MoeCombine(none_,
                           {m44_.view(),
                            absl::MakeConstSpan(source).first(5),
                            absl::MakeConstSpan(weights).first(5),
                            {},
                            {},
                            out.view()},
                           *stream_),
                "MoeCombine", "5 sources and 5 weights for 3 rows");
  ExpectRefused(MoeCombine(none_, {m44_.view(), source, weights, m44_.view(), {}, out.view()}, *stream_),
                "MoeCombine", "shared is [4, 4], not [3, 4]");
  ExpectRefused(
      MoeCombine(none_, {m44_.view(), source, weights, m34_.view(), wide_gate.view(), out.view()}, *stream_),
      "MoeCombine", "shared_gate is [3, 2], not [3, 1]");
  source[4] = 4;
  ExpectRefused(MoeCombine(none_, {m44_.view(), source, weights, {}, {}, out.view()}, *stream_), "MoeCombine",
                "row 4 of 4");
  MoeCombineArgs host{m44_.view(), source, weights, {}, {}, out.view()};
  host.host_y = m44_.view();
  ExpectRefused(MoeCombine(none_, host, *stream_), "MoeCombine", "kernels do not read host memory");
  KernelTable reaches;
  reaches.reaches_host = true;
  host.host_y = m35_.view();
  ExpectRefused(MoeCombine(reaches, host, *stream_), "MoeCombine", "host_y is [3, 5], not [3, 4]");
  host.host_y = m44_.view();
  source[4] = 8;
  ExpectRefused(MoeCombine(reaches, host, *stream_), "MoeCombine", "row 8 of 8");
}

// Host kernels run where host memory is the device's: inline on an emulated device, not at all on a CUDA
// stream.
TEST_F(ValidationTest, Streams) {
  Matrix x(3, 4, random_);
  OtherStream emulated(device::DeviceKind::kEmulated);
  OtherStream cuda(device::DeviceKind::kCuda);
  for (const KernelTable* table : {&RefKernels(), &CpuKernels()}) {
    Matrix y = x;
    EXPECT_TRUE(Add(*table, {x.view(), y.view()}, emulated).ok());
    EXPECT_EQ(y.at(2, 3), 2 * x.at(2, 3));
    EXPECT_EQ(Add(*table, {x.view(), y.view()}, cuda).code(), absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace comoe::kernels
