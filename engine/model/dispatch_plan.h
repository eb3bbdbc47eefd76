// Rows of a MoE layer grouped by expert.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace comoe::model {

// Thread-compatible. Sized once for the largest step; Build does not allocate after that.
class DispatchPlan {
 public:
  DispatchPlan(std::int64_t max_rows, std::int64_t experts_per_row, std::int64_t num_experts);

  // experts: [T, K], each in [0, E). A counting sort: experts ascending, rows ascending within one.
  void Build(absl::Span<const std::int32_t> experts);

  // The results of slots [first, first + count) are the host's.
  void MoveToHost(std::int64_t first, std::size_t count);

  struct Group {
    std::int32_t expert = 0;
    std::int64_t first = 0;  // into rows(), and the first row of the expert's results
    std::int64_t count = 0;
  };
  absl::Span<const Group> groups() const { return groups_; }
  // Most rows of an expert over the mean of all experts.
  double Imbalance() const;
  // [T * K]: the row that slot i computes.
  absl::Span<const std::int32_t> rows() const { return absl::MakeConstSpan(rows_).first(num_slots_); }
  // [T, K]: the slot that holds the result of row t's k-th expert; i + T * K where that is row i of what the
  // host computed.
  absl::Span<const std::int32_t> source() const { return absl::MakeConstSpan(source_).first(num_slots_); }

 private:
  const std::int64_t experts_per_row_;
  std::size_t num_slots_ = 0;
  std::vector<Group> groups_;
  std::vector<std::int64_t> next_;  // [E]
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> source_;
};

}  // namespace comoe::model
