#include "engine/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace comoe::model {
namespace {

using checkpoint::RopeConfig;

// YaRN's attention temperature for a context stretched by `factor`.
double YarnScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor > 0.0) {
    return config.attention_factor;
  }
  if (config.mscale != 0.0 && config.mscale_all_dim != 0.0) {
    return YarnScale(config.factor, config.mscale) / YarnScale(config.factor, config.mscale_all_dim);
  }
  return YarnScale(config.factor, 1.0);
}

// Frequencies that turn often within the original context stay, those that turn less than once are
// interpolated, and a ramp over the dimensions leads from one to the other.
void ApplyYarn(const RopeConfig& config, double dim, std::vector<double>& frequencies) {
  const auto dimension_of = [&config, dim](double turns) {
    return dim *
           std::log(static_cast<double>(config.original_max_positions) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  double low = dimension_of(config.beta_fast);
  double high = dimension_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / config.factor * ramp + frequencies[i] * (1.0 - ramp);
  }
}

void ApplyLlama3(const RopeConfig& config, std::vector<double>& frequencies) {
  const auto context = static_cast<double>(config.original_max_positions);
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < context / config.high_freq_factor) {
      continue;
    }
    if (wavelength > context / config.low_freq_factor) {
      frequency /= config.factor;
      continue;
    }
    const double smooth =
        (context / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
    frequency = (1.0 - smooth) * frequency / config.factor + smooth * frequency;
  }
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, std::int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    frequencies.push_back(1.0 / std::pow(config.theta, static_cast<double>(i) / dim));
  }
  switch (config.type) {
    case RopeConfig::Type::kDefault:
      break;
    case RopeConfig::Type::kLinear:
      for (double& frequency : frequencies) {
        frequency /= config.factor;
      }
      break;
    case RopeConfig::Type::kYarn:
      ApplyYarn(config, dim, frequencies);
      attention_scaling_ = static_cast<float>(YarnAttentionFactor(config));
      break;
    case RopeConfig::Type::kLlama3:
      ApplyLlama3(config, frequencies);
      break;
  }
  inverse_frequencies_.assign(frequencies.begin(), frequencies.end());
}

void RopeTable::Fill(absl::Span<const std::int64_t> positions, const tensor::TensorView& cos,
                     const tensor::TensorView& sin) const {
  for (std::size_t t = 0; t < positions.size(); ++t) {
    float* cos_row = cos.f32(static_cast<std::int64_t>(t));
    float* sin_row = sin.f32(static_cast<std::int64_t>(t));
    const auto position = static_cast<float>(positions[t]);
    for (std::size_t i = 0; i < inverse_frequencies_.size(); ++i) {
      const float angle = position * inverse_frequencies_[i];
      cos_row[i] = std::cos(angle) * attention_scaling_;
      sin_row[i] = std::sin(angle) * attention_scaling_;
    }
  }
}

}  // namespace comoe::model
