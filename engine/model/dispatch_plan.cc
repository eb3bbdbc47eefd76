#include "engine/model/dispatch_plan.h"

#include <algorithm>

namespace comoe::model {

DispatchPlan::DispatchPlan(std::int64_t max_rows, std::int64_t experts_per_row, std::int64_t num_experts)
    : experts_per_row_(experts_per_row),
      next_(static_cast<std::size_t>(num_experts)),
      rows_(static_cast<std::size_t>(max_rows * experts_per_row)),
      source_(static_cast<std::size_t>(max_rows * experts_per_row)) {
  groups_.reserve(static_cast<std::size_t>(num_experts));
}

void DispatchPlan::Build(absl::Span<const std::int32_t> experts) {
  num_slots_ = experts.size();
  groups_.clear();
  std::fill(next_.begin(), next_.end(), 0);
  for (const std::int32_t expert : experts) {
    ++next_[static_cast<std::size_t>(expert)];
  }
  std::int64_t first = 0;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    const std::int64_t count = next_[expert];
    if (count > 0) {
      groups_.push_back({static_cast<std::int32_t>(expert), first, count});
    }
    next_[expert] = first;
    first += count;
  }
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const std::int64_t slot = next_[static_cast<std::size_t>(experts[i])]++;
    rows_[static_cast<std::size_t>(slot)] =
        static_cast<std::int32_t>(static_cast<std::int64_t>(i) / experts_per_row_);
    source_[i] = static_cast<std::int32_t>(slot);
  }
}

void DispatchPlan::MoveToHost(std::int64_t first, std::size_t count) {
  for (auto slot = static_cast<std::size_t>(first); slot < static_cast<std::size_t>(first) + count; ++slot) {
    const auto row = source_.begin() + rows_[slot] * experts_per_row_;
    *std::find(row, row + experts_per_row_, static_cast<std::int32_t>(slot)) +=
        static_cast<std::int32_t>(num_slots_);
  }
}

double DispatchPlan::Imbalance() const {
  std::int64_t most = 0;
  for (const Group& group : groups_) {
    most = std::max(most, group.count);
  }
  return static_cast<double>(most * static_cast<std::int64_t>(next_.size())) /
         static_cast<double>(std::max<std::size_t>(num_slots_, 1));
}

}  // namespace comoe::model
