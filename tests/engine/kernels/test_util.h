// What the kernel tests share: owners of matrices and weights with random content, streams, comparisons.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/rng.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/kernels/cpu/cpu_kernels.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"
#include "gtest/gtest.h"

namespace comoe::kernels {

inline constexpr tensor::DType kDTypes[] = {tensor::DType::kBf16, tensor::DType::kF16, tensor::DType::kF32};

// COMOE_TEST_SEED, or a fixed one; printed by the first test that draws.
inline std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("COMOE_TEST_SEED");
    const std::uint64_t value = text == nullptr ? 20220623 : std::strtoull(text, nullptr, 10);
    std::cout << "seed " << value << " (COMOE_TEST_SEED)" << std::endl;
    return value;
  }();
  return seed;
}

// Draws of one test; each has its own stream of the seed.
class Random {
 public:
  explicit Random(std::uint64_t stream) : seed_(base::RandomBits(TestSeed(), stream)) {}

  float Uniform() { return static_cast<float>(2.0 * base::RandomUnit(seed_, counter_++) - 1.0); }  // [-1, 1)
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(base::RandomBits(seed_, counter_++) % static_cast<std::uint64_t>(n));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

inline constexpr float kCanary = -12345.5F;

// A host matrix whose rows are `padding` floats apart; what lies between rows is a canary.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t cols, std::int64_t padding = 3)
      : rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        data_(static_cast<std::size_t>(std::max<std::int64_t>(rows * (cols + padding), 1)), kCanary) {}
  Matrix(std::int64_t rows, std::int64_t cols, Random& random, std::int64_t padding = 3)
      : Matrix(rows, cols, padding) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        at(r, c) = random.Uniform();
      }
    }
  }

  float& at(std::int64_t r, std::int64_t c) { return data_[static_cast<std::size_t>(r * stride_ + c)]; }
  float at(std::int64_t r, std::int64_t c) const { return data_[static_cast<std::size_t>(r * stride_ + c)]; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  tensor::TensorView view() {
    return {reinterpret_cast<std::byte*>(data_.data()), tensor::DType::kF32, rows_, cols_, stride_, {}};
  }

  // Nothing was written between the rows.
  bool CanariesLive() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = cols_; c < stride_; ++c) {
        if (at(r, c) != kCanary) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t stride_;
  std::vector<float> data_;
};

// Bytes aligned as weights are.
struct FreeAligned {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
inline AlignedBytes AllocateAligned(std::size_t bytes) {
  const std::size_t rounded = base::AlignUp(std::max<std::size_t>(bytes, 1), tensor::kWeightAlignment);
  return AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(tensor::kWeightAlignment, rounded)));
}

inline std::vector<float> RandomValues(std::int64_t count, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return random.Uniform(); });
  return values;
}

// The values in `dtype`, rounded to it.
inline std::vector<std::byte> Encode(tensor::DType dtype, const std::vector<float>& values) {
  const std::size_t width = tensor::DTypeBytes(dtype);
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    if (dtype == tensor::DType::kF32) {
      std::memcpy(&bytes[i * width], &value, width);
    } else {
      const std::uint16_t bits =
          dtype == tensor::DType::kBf16 ? tensor::FloatToBf16(value) : tensor::FloatToF16(value);
      std::memcpy(&bytes[i * width], &bits, width);
    }
  }
  return bytes;
}

// A packed [n, k] with random content.
class Weight {
 public:
  Weight(tensor::DType dtype, std::int64_t n, std::int64_t k, Random& random)
      : layout_{dtype, n, k}, data_(AllocateAligned(layout_.bytes())) {
    tensor::PackPanels(layout_, Encode(dtype, RandomValues(n * k, random)).data(), data_.get(), 0, 1);
  }
  tensor::PackedMatrixView view() const { return {data_.get(), layout_}; }

 private:
  tensor::MatrixLayout layout_;
  AlignedBytes data_;
};

// An expert's blob, with random or with given content.
class Expert {
 public:
  // gate, up: [F, D]; down: [D, F]. `layout` must live as long as the expert.
  Expert(const tensor::BlobLayout& layout, const std::vector<float>& gate, const std::vector<float>& up,
         const std::vector<float>& down)
      : layout_(layout), data_(AllocateAligned(layout.bytes)) {
    const tensor::DType dtype = layout.down.dtype;
    const tensor::MatrixLayout half = {dtype, layout.intermediate, layout.hidden};
    std::memset(data_.get(), 0, layout.bytes);
    std::byte* gate_up = data_.get() + layout.gate_up_offset;
    tensor::PackPanels(half, Encode(dtype, gate).data(), gate_up, 0, 2);
    tensor::PackPanels(half, Encode(dtype, up).data(), gate_up, 1, 2);
    tensor::PackPanels(layout.down, Encode(dtype, down).data(), data_.get() + layout.down_offset, 0, 1);
  }
  // Braces, so that the draws have an order.
  Expert(const tensor::BlobLayout& layout, Random& random)
      : Expert{layout, RandomValues(layout.intermediate * layout.hidden, random),
               RandomValues(layout.intermediate * layout.hidden, random),
               RandomValues(layout.intermediate * layout.hidden, random)} {}
  tensor::ExpertView view() const { return {data_.get(), &layout_}; }

 private:
  const tensor::BlobLayout& layout_;
  AlignedBytes data_;
};

// A CPU device and a stream on it.
class TestStream {
 public:
  explicit TestStream(int threads)
      : device_(device::MakeCpuDevice(threads)),
        stream_(device_->CreateStream("test", device::StreamKind::kCompute).value()) {}
  device::Stream& operator*() const { return *stream_; }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

// Targets that have fused multiply-add and must therefore agree to the bit.
inline bool HasFma(const KernelTable& table) {
  return absl::string_view(table.name) == "cpu/AVX3" || absl::string_view(table.name) == "cpu/AVX2";
}

inline bool SameBits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// Where the first `rows` rows of two matrices differ in a bit, or "".
inline std::string FirstDifference(const Matrix& a, const Matrix& b, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      if (!SameBits(a.at(r, c), b.at(r, c))) {
        return absl::StrCat("[", r, ", ", c, "]: ", a.at(r, c), " and ", b.at(r, c));
      }
    }
  }
  return "";
}

// The worst element of |a - b| / tolerance(r, c), as text when it is above 1 (or NaN), otherwise "".
template <class Tolerance>
std::string WorstElement(const Matrix& a, const Matrix& b, const Tolerance& tolerance) {
  double worst = 0;
  std::string text;
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) {
      const double limit = tolerance(r, c);
      const double ratio =
          std::fabs(static_cast<double>(a.at(r, c)) - static_cast<double>(b.at(r, c))) / limit;
      if (!(ratio <= std::max(worst, 1.0))) {
        worst = ratio;
        text = absl::StrCat("[", r, ", ", c, "]: ", a.at(r, c), " and ", b.at(r, c), ", ", ratio,
                            " times the tolerance ", limit);
      }
    }
  }
  return text;
}

inline constexpr double kEpsilon = 0x1.0p-24;  // half a unit in the last place of 1.0F

}  // namespace comoe::kernels
