#include "scheduler/routing/predictor.h"

#include <algorithm>
#include <cstddef>

namespace comoe::routing {

void MostLikely(absl::Span<const float> probabilities, std::int32_t n, std::vector<std::int32_t>* experts) {
  experts->clear();
  for (std::size_t e = 0; e < probabilities.size(); ++e) {
    if (probabilities[e] > 0.0F) {
      experts->push_back(static_cast<std::int32_t>(e));
    }
  }
  const auto before = [probabilities](std::int32_t a, std::int32_t b) {
    const float pa = probabilities[static_cast<std::size_t>(a)];
    const float pb = probabilities[static_cast<std::size_t>(b)];
    return pa > pb || (pa == pb && a < b);
  };
  const std::size_t kept = std::min(experts->size(), static_cast<std::size_t>(std::max(n, 0)));
  std::partial_sort(experts->begin(), experts->begin() + static_cast<std::ptrdiff_t>(kept), experts->end(),
                    before);
  experts->resize(kept);
}

}  // namespace comoe::routing
