#include "engine/api/sampling_params.h"

#include "absl/strings/str_cat.h"

namespace comoe::api {

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
  return absl::OkStatus();
}

}  // namespace comoe::api
