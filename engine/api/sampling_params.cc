#include "engine/api/sampling_params.h"

#include "absl/strings/str_cat.h"

namespace comoe::api {
namespace {

absl::Status ValidateLogitBias(const std::vector<LogitBias>& biases, std::int32_t vocab_size) {
  if (biases.size() > kMaxLogitBiases) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_bias has ", biases.size(), " tokens: at most ", kMaxLogitBiases));
  }
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const LogitBias& bias = biases[i];
    if (bias.id < 0 || bias.id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias names token ", bias.id, ": the vocabulary is [0, ", vocab_size, ")"));
    }
    if (!(-100.0F <= bias.bias && bias.bias <= 100.0F)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias of token ", bias.id, " is ", bias.bias, ": it lies in [-100, 100]"));
    }
    if (i > 0 && biases[i - 1].id >= bias.id) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias names token ", bias.id, " twice, or out of order"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, std::int32_t vocab_size) {
  // Written as !(lo <= x && x <= hi), so that NaN fails.
  if (!(0.0F <= params.temperature && params.temperature <= 2.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature is ", params.temperature, ": it lies in [0, 2]"));
  }
  if (!(0.0F < params.top_p && params.top_p <= 1.0F)) {
    return absl::InvalidArgumentError(absl::StrCat("top_p is ", params.top_p, ": it lies in (0, 1]"));
  }
  if (!(0.0F <= params.min_p && params.min_p <= 1.0F)) {
    return absl::InvalidArgumentError(absl::StrCat("min_p is ", params.min_p, ": it lies in [0, 1]"));
  }
  if (params.top_k < 0 || params.top_k > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("top_k is ", params.top_k, ": it lies in [0, ", vocab_size,
                                                   "], 0 (or -1 in a request) is off"));
  }
  if (!(0.0F < params.repetition_penalty && params.repetition_penalty <= 2.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("repetition_penalty is ", params.repetition_penalty, ": it lies in (0, 2]"));
  }
  if (!(-2.0F <= params.presence_penalty && params.presence_penalty <= 2.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("presence_penalty is ", params.presence_penalty, ": it lies in [-2, 2]"));
  }
  if (!(-2.0F <= params.frequency_penalty && params.frequency_penalty <= 2.0F)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frequency_penalty is ", params.frequency_penalty, ": it lies in [-2, 2]"));
  }
  return ValidateLogitBias(params.logit_bias, vocab_size);
}

}  // namespace comoe::api
