#include "tests/engine/sampling/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/rng.h"

namespace comoe::sampling {
namespace {

// exp(-87): what weighs less counts as impossible.
constexpr double kLeastWeight = 1.65e-38;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Weight(const std::vector<double>& logits, std::size_t id, float temperature) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  return std::exp((logits[id] - highest) / static_cast<double>(temperature));
}

}  // namespace

std::vector<float> RandomLogits(std::size_t vocab, std::uint64_t seed) {
  std::vector<float> logits(vocab);
  for (std::size_t i = 0; i < vocab; ++i) {
    const double a = base::RandomUnit(seed, 2 * i);
    const double b = base::RandomUnit(seed, 2 * i + 1);
    logits[i] =
        static_cast<float>(2.5 * std::sqrt(-2.0 * std::log(1.0 - a)) * std::cos(6.283185307179586 * b));
  }
  return logits;
}

std::vector<double> ReferenceAdjusted(const std::vector<float>& logits, const api::SamplingParams& params,
                                      const api::SampleContext& context) {
  std::vector<double> result(logits.begin(), logits.end());
  for (const api::LogitBias& bias : params.logit_bias) {
    result[static_cast<std::size_t>(bias.id)] += static_cast<double>(bias.bias);
  }
  std::vector<double> masked = result;
  for (const base::TokenId id : context.masked) {
    masked[static_cast<std::size_t>(id)] = -kInfinity;
  }
  if (*std::max_element(masked.begin(), masked.end()) > -kInfinity) {
    result = masked;
  }
  const std::set<base::TokenId> all(context.tokens.begin(), context.tokens.end());
  std::map<base::TokenId, int> output;
  for (std::size_t i = static_cast<std::size_t>(context.num_prompt); i < context.tokens.size(); ++i) {
    ++output[context.tokens[i]];
  }
  for (const base::TokenId id : all) {
    double& logit = result[static_cast<std::size_t>(id)];
    const auto penalty = static_cast<double>(params.repetition_penalty);
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  for (const auto& [id, count] : output) {
    double& logit = result[static_cast<std::size_t>(id)];
    logit -= count * static_cast<double>(params.frequency_penalty);
    logit -= static_cast<double>(params.presence_penalty);
  }
  return result;
}

std::vector<std::size_t> ReferenceKept(const std::vector<double>& adjusted,
                                       const api::SamplingParams& params) {
  std::vector<std::size_t> order(adjusted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return adjusted[a] > adjusted[b]; });
  std::vector<std::size_t> kept;
  double mass = 0.0;
  for (const std::size_t i : order) {
    const bool within_k = params.top_k == 0 || kept.size() < static_cast<std::size_t>(params.top_k);
    const double weight = Weight(adjusted, i, params.temperature);
    if (within_k && weight > kLeastWeight && weight >= static_cast<double>(params.min_p)) {
      kept.push_back(i);
      mass += weight;
    }
  }
  double reached = 0.0;
  for (std::size_t n = 0; n < kept.size(); ++n) {
    reached += Weight(adjusted, kept[n], params.temperature);
    if (params.top_p < 1.0F && reached >= static_cast<double>(params.top_p) * mass) {
      kept.resize(n + 1);
    }
  }
  return kept;
}

std::vector<double> ReferenceDistribution(const std::vector<float>& logits, const api::SamplingParams& params,
                                          const api::SampleContext& context) {
  const std::vector<double> adjusted = ReferenceAdjusted(logits, params, context);
  std::vector<double> result(logits.size(), 0.0);
  double mass = 0.0;
  for (const std::size_t id : ReferenceKept(adjusted, params)) {
    result[id] = Weight(adjusted, id, params.temperature);
    mass += result[id];
  }
  for (double& probability : result) {
    probability /= mass;
  }
  return result;
}

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const double highest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double mass = 0.0;
  for (const float logit : logits) {
    mass += std::exp(static_cast<double>(logit) - highest);
  }
  std::vector<double> result;
  for (const float logit : logits) {
    result.push_back(static_cast<double>(logit) - highest - std::log(mass));
  }
  return result;
}

}  // namespace comoe::sampling
