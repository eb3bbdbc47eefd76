// Rotary frequencies of a model and the cosines and sines of a step's positions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/checkpoint/model_config.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::model {

// Thread-compatible; constant after construction. Frequencies follow transformers' modeling_rope_utils:
// default, linear ("position interpolation"), YaRN (arXiv 2309.00071) and Llama 3's smoothed scaling.
class RopeTable {
 public:
  RopeTable(const checkpoint::RopeConfig& config, std::int64_t head_dim);

  // cos[t, i] and sin[t, i] of positions[t] * frequency i, times the attention scaling. Angles are float32
  // products, as in the models' training code. cos and sin: [T, P/2] F32, host.
  void Fill(absl::Span<const std::int64_t> positions, const tensor::TensorView& cos,
            const tensor::TensorView& sin) const;

  absl::Span<const float> inverse_frequencies() const { return inverse_frequencies_; }
  float attention_scaling() const { return attention_scaling_; }

 private:
  std::vector<float> inverse_frequencies_;  // [P/2], radians a position
  float attention_scaling_ = 1.0F;
};

}  // namespace comoe::model
