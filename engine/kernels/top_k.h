// The experts of a row, best first: the one definition of how equals and NaN rank, for the host backends.
#pragma once

#include <cmath>
#include <cstdint>

namespace comoe::kernels {

// True when logit a ranks strictly above b. NaN ranks below everything; equals rank by index, which the
// callers see to.
inline bool RanksAbove(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// Writes to out[0 .. k) the indices of the k best of logits[0 .. n), best first, lower index first among
// equals. 1 <= k <= n. Does not allocate; O(n) unless the logits rise all the way.
inline void SelectTopK(const float* logits, std::int64_t n, std::int64_t k, std::int32_t* out) {
  std::int64_t held = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    if (held == k && !RanksAbove(logits[e], logits[out[k - 1]])) {
      continue;
    }
    std::int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && RanksAbove(logits[e], logits[out[at - 1]]); --at) {
      out[at] = out[at - 1];
    }
    out[at] = static_cast<std::int32_t>(e);
  }
}

}  // namespace comoe::kernels
