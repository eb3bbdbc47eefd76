// A matrix of activations that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/check.h"
#include "engine/device/device.h"
#include "engine/tensor/dtype.h"

namespace comoe::tensor {

// [rows, cols] of `dtype`, elements of a row adjacent, rows `row_stride` elements apart. A value: copy it.
// The bytes belong to whoever made the view, and outlive the work that uses it.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  device::DeviceId device;

  // Row r as floats; F32 on the host only.
  float* f32(std::int64_t r = 0) const {
    COMOE_DCHECK(dtype == DType::kF32, "the view holds F32");
    return reinterpret_cast<float*>(data) + r * row_stride;
  }

  TensorView Rows(std::int64_t first, std::int64_t count) const {
    COMOE_DCHECK(first >= 0 && count >= 0 && first + count <= rows, "a slice lies within its view");
    TensorView view = *this;
    view.data += static_cast<std::size_t>(first * row_stride) * DTypeBytes(dtype);
    view.rows = count;
    return view;
  }
  TensorView Cols(std::int64_t first, std::int64_t count) const {
    COMOE_DCHECK(first >= 0 && count >= 0 && first + count <= cols, "a slice lies within its view");
    TensorView view = *this;
    view.data += static_cast<std::size_t>(first) * DTypeBytes(dtype);
    view.cols = count;
    return view;
  }
};

// A dense F32 host matrix over `data`.
inline TensorView HostF32(float* data, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(data), DType::kF32, rows, cols, cols, {}};
}

}  // namespace comoe::tensor
