// Kernels of the emulated accelerator: the bits of the CPU's, on every kind of stream, and the time that the
// rates say.
#include "engine/kernels/emulated/emulated_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/kernels/ops.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

std::unique_ptr<device::Device> MakeDevice(bool real_clock = false) {
  device::EmulatedOptions options;
  options.threads = 2;
  options.real_clock = real_clock;
  options.rates.device_launch_seconds = 0.0;
  options.rates.device_bytes_per_second = 1e9;
  options.rates.device_flops_per_second = 1e9;
  options.rates.host_bytes_per_second = 1e8;
  options.rates.host_flops_per_second = 1e8;
  return device::MakeEmulatedDevice(options).value();
}

// Every op once, over random arguments that are the same for every table; all outputs in one list.
class EveryOp {
 public:
  explicit EveryOp(const KernelTable& table, device::Stream& stream, device::Device* device)
      : table_(table), stream_(stream), device_(device) {}

  std::vector<float> Run() {
    Random random(11);
    constexpr std::int64_t kRows = 5;
    constexpr std::int64_t kHidden = 48;
    const Weight weight(tensor::DType::kBf16, kHidden, kHidden, random);
    Matrix x(kRows, kHidden, random);
    Matrix y(kRows, kHidden, random);
    Matrix norm(1, kHidden, random, 0);
    Matrix cos(kRows, 4, random);
    Matrix sin(kRows, 4, random);
    const std::vector<base::TokenId> ids = {3, 1, 4, 1, 5};

    Check("embed", Embed(table_, {ids, weight.view(), x.view()}, stream_), x);
    Check("rms_norm",
          RmsNorm(table_, {x.view(), {norm.view().f32(), std::size_t{kHidden}}, 1e-6F, 1, y.view()}, stream_),
          y);
    Check("matmul", MatMul(table_, {y.view(), weight.view(), {}, x.view()}, stream_), x);
    Check("rope", Rope(table_, {x.view(), 6, cos.view(), sin.view()}, stream_), x);
    Check("add", Add(table_, {x.view(), y.view()}, stream_), y);
    Check("clamp", Clamp(table_, {y.view(), 0.5F}, stream_), y);
    RunAttention(x, y);
    RunExperts(x, y, random);
    return outputs_;
  }

 private:
  void RunAttention(Matrix& x, Matrix& y) {
    tensor::KvView kv;
    kv.layout = {2, 8, tensor::DType::kF32};
    kv.num_blocks = 1;
    std::vector<float> block(static_cast<std::size_t>(kv.layout.block_elements()), 0.0F);
    kv.data = reinterpret_cast<std::byte*>(block.data());
    const std::vector<base::BlockId> blocks = {base::BlockId{0}};
    const std::vector<SequenceRows> sequences = {{0, x.rows(), 0, blocks}};
    const absl::Status appended =
        AppendKv(table_, {x.view().Cols(0, 16), x.view().Cols(16, 16), sequences, kv}, stream_);
    Check("append_kv", appended, x);
    outputs_.insert(outputs_.end(), block.begin(), block.end());
    Check("attention", Attention(table_, {x.view(), sequences, kv, 6, 3, 0.3F, y.view()}, stream_), y);
  }

  void RunExperts(Matrix& x, Matrix& out, Random& random) {
    constexpr std::int64_t kPerRow = 2;
    Matrix logits(x.rows(), 4, random);
    const auto chosen = static_cast<std::size_t>(x.rows() * kPerRow);
    std::vector<std::int32_t> experts(chosen);
    std::vector<float> weights(chosen);
    Check("moe_gate",
          MoeGate(table_, {logits.view(), kPerRow, true, absl::MakeSpan(experts), absl::MakeSpan(weights)},
                  stream_),
          logits);
    outputs_.insert(outputs_.end(), weights.begin(), weights.end());
    outputs_.insert(outputs_.end(), experts.begin(), experts.end());

    const tensor::BlobLayout layout = tensor::BlobLayout::Make(tensor::DType::kBf16, x.cols(), 40);
    const Expert a(layout, random);
    const Expert b(layout, random);
    const std::vector<std::int32_t> rows = {0, 1, 2, 3, 4};
    const std::vector<ExpertRows> work = {{a.view(), rows, 0}, {b.view(), rows, 5}};
    Matrix scratch(10, 48);
    Matrix y(10, x.cols());
    Check("expert_ffn", ExpertFfn(table_, {x.view(), work, scratch.view(), y.view()}, stream_), y);
    std::vector<std::int32_t> source(chosen);
    for (std::size_t i = 0; i < chosen; ++i) {
      source[i] = static_cast<std::int32_t>(i % 10);
    }
    Check("moe_combine", MoeCombine(table_, {y.view(), source, weights, {}, {}, out.view()}, stream_), out);
  }

  void Check(const std::string& op, const absl::Status& status, const Matrix& result) {
    EXPECT_TRUE(status.ok()) << op << ": " << status;
    for (std::int64_t r = 0; r < result.rows(); ++r) {
      for (std::int64_t c = 0; c < result.cols(); ++c) {
        outputs_.push_back(result.at(r, c));
      }
    }
    if (device_ != nullptr) {
      EXPECT_TRUE(stream_.Synchronize().ok());
      EXPECT_GT(device_->Now(), now_) << op << " took no time";
      now_ = device_->Now();
    }
  }

  const KernelTable& table_;
  device::Stream& stream_;
  device::Device* device_;
  double now_ = 0.0;
  std::vector<float> outputs_;
};

TEST(EmulatedKernelsTest, GiveTheBitsOfTheCpu) {
  EXPECT_EQ(std::string(EmulatedKernels().name), absl::StrCat("emulated/", CpuKernels().name));
  const TestStream cpu(2);
  const std::vector<float> expected = EveryOp(CpuKernels(), *cpu, nullptr).Run();
  const auto same = [&](const std::vector<float>& got) {
    return got.size() == expected.size() && std::equal(got.begin(), got.end(), expected.begin(), SameBits);
  };
  EXPECT_TRUE(same(EveryOp(EmulatedKernels(), *cpu, nullptr).Run()));
  for (const bool real_clock : {false, true}) {
    const std::unique_ptr<device::Device> device = MakeDevice(real_clock);
    const std::unique_ptr<device::Stream> compute =
        device->CreateStream("compute", device::StreamKind::kCompute).value();
    EXPECT_TRUE(same(EveryOp(EmulatedKernels(), *compute, device.get()).Run()));
    EXPECT_GT(device->times().compute, 0.0);
    EXPECT_EQ(device->times().host_lane, 0.0);
  }
  const std::unique_ptr<device::Device> device = MakeDevice();
  const std::unique_ptr<device::Stream> host =
      device->CreateStream("host", device::StreamKind::kHost).value();
  EXPECT_TRUE(same(EveryOp(EmulatedKernels(), *host, device.get()).Run()));
  EXPECT_GT(device->times().host_lane, 0.0);
  EXPECT_EQ(device->times().compute, 0.0);
}

TEST(EmulatedKernelsTest, TakeWhatTheRatesSay) {
  Random random(1);
  const Weight weight(tensor::DType::kBf16, 32, 64, random);  // 4096 bytes
  for (const std::int64_t rows : {1, 16}) {
    Matrix x(rows, 64, random);
    Matrix y(rows, 32);
    const double bytes = 4096.0 + static_cast<double>(rows) * (64 + 32) * 4.0;
    const double flops = 2.0 * static_cast<double>(rows) * 64 * 32;
    for (const device::StreamKind kind : {device::StreamKind::kCompute, device::StreamKind::kHost}) {
      const std::unique_ptr<device::Device> device = MakeDevice();
      const std::unique_ptr<device::Stream> stream = device->CreateStream("s", kind).value();
      ASSERT_TRUE(MatMul(EmulatedKernels(), {x.view(), weight.view(), {}, y.view()}, *stream).ok());
      ASSERT_TRUE(stream->Synchronize().ok());
      const double rate = kind == device::StreamKind::kCompute ? 1e9 : 1e8;
      EXPECT_DOUBLE_EQ(device->Now(), std::max(bytes, flops) / rate);
    }
  }
}

}  // namespace
}  // namespace comoe::kernels
