// A small trained checkpoint embedded in a larger model: same logits, same routing, the bytes and FLOPs of
// the large one. For timings at real sizes.
//
// With h, i the small and H, I the large hidden size and expert intermediate size:
//   - the hidden stream beyond h stays exactly zero: embedding columns >= h and rows >= h of every projection
//   that
//     writes to the stream (attention output, FFN down) are zero;
//   - columns >= h of everything that reads it (q, k, v, router, gates, ups, untied head) meet zeros, so they
//   hold
//     filler; expert gate rows >= i are zero (SiLU(0) * up = 0), so up rows >= i and down columns >= i hold
//     filler;
//   - RMSNorm's mean runs over H now: its weights are multiplied by sqrt(h / H) and epsilon by h / H. These
//   weights are
//     stored as F32, unless H / h is a power of 4 and the factor is exact in any dtype;
//   - heads, head dim, QK norms, biases, dense and shared intermediate sizes stay as they are.
// Filler is a pure function of tensor name and element index, about N(0, 0.02), in the tensor's dtype, so
// that nothing compresses or zeroes away.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"

namespace comoe::checkpoint {

// The widened config. INVALID_ARGUMENT when a size shrinks or does not fit.
absl::StatusOr<ModelConfig> WidenConfig(const ModelConfig& config, std::int64_t hidden,
                                        std::int64_t intermediate);

// Yields the widened tensors, each made when it is read and owned by its TensorData. `from` is what `source`
// holds and has passed CheckTensors; `to` comes from WidenConfig. Tensors nothing asks for are left out.
// `source` must outlive the result (the owning form keeps it).
absl::StatusOr<std::unique_ptr<TensorSource>> MakeWidenedSource(const TensorSource& source,
                                                                const ModelConfig& from,
                                                                const ModelConfig& to);
absl::StatusOr<std::unique_ptr<TensorSource>> MakeWidenedSource(std::unique_ptr<TensorSource> source,
                                                                const ModelConfig& from,
                                                                const ModelConfig& to);

}  // namespace comoe::checkpoint
