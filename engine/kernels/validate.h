// Shape checks that the ops share. Each returns INVALID_ARGUMENT that names the op, the argument and both
// shapes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/thread_pool.h"
#include "engine/device/device.h"
#include "engine/kernels/paged_attention.h"
#include "engine/tensor/kv_layout.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// InvalidArgument("<op>: <what>").
absl::Status BadArgument(absl::string_view op, absl::string_view what);

// `view` is a float32 matrix [rows, cols] with data (unless it is empty) and rows that do not overlap.
absl::Status CheckMatrix(absl::string_view op, absl::string_view name, const tensor::TensorView& view,
                         std::int64_t rows, std::int64_t cols);

// `w` has sizes above 0, and data aligned as PackedMatrixView asks.
absl::Status CheckWeight(absl::string_view op, absl::string_view name, const tensor::PackedMatrixView& w);

// `w` is in panels: what the host's vector kernels read.
absl::Status CheckPanels(absl::string_view op, const tensor::PackedMatrixView& w);

// `kv` has data and sizes above 0; the rows of `seq` lie within [0, rows) and its positions from
// `first_position` to its last row's have blocks of `kv`.
absl::Status CheckKv(absl::string_view op, const tensor::KvView& kv);
absl::Status CheckSequence(absl::string_view op, const SequenceRows& seq, std::int64_t rows,
                           const tensor::KvView& kv, std::int64_t first_position);

// FAILED_PRECONDITION unless host code may touch what is queued on `stream`: a CPU or an emulated device's.
absl::Status CheckHostStream(absl::string_view op, const device::Stream& stream);

}  // namespace comoe::kernels
