#include "scheduler/routing/split_planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace comoe::routing {
namespace {

// How much later than the best plan, and than the better of the static ones, a layer may end for the sake of
// later ones.
constexpr double kLaterThanBest = 1.08;
constexpr double kLaterThanStatic = 1.02;

double SavedOf(absl::Span<const double> saved, std::int32_t i) {
  return saved.empty() ? 0.0 : saved[static_cast<std::size_t>(i)];
}

void Follow(double measured, double hysteresis, double* steady) {
  if (!(std::abs(measured - *steady) <= hysteresis * *steady)) {
    *steady = measured;
  }
}

}  // namespace

double CopySeconds(std::int64_t num_copies, const api::LaneState& lanes) {
  if (num_copies == 0) {
    return 0.0;
  }
  const double each = std::max(lanes.link_seconds_per_expert, lanes.device_seconds_per_expert);
  return lanes.link_queue_seconds + lanes.link_seconds_per_expert +
         static_cast<double>(num_copies - 1) * each + lanes.device_seconds_per_expert;
}

double HostSeconds(std::int32_t rows, const api::LaneState& lanes) {
  return lanes.host_seconds_per_expert + static_cast<double>(rows - 1) * lanes.host_seconds_per_row;
}

SplitPlanner::SplitPlanner(bool host_lane, std::int32_t max_misses, double hysteresis)
    : host_lane_(host_lane), hysteresis_(hysteresis) {
  order_.reserve(static_cast<std::size_t>(max_misses));
  best_.reserve(static_cast<std::size_t>(max_misses));
}

api::LaneState SplitPlanner::Steady(const api::LaneState& lanes) {
  Follow(lanes.link_seconds_per_expert, hysteresis_, &steady_.link_seconds_per_expert);
  Follow(lanes.device_seconds_per_expert, hysteresis_, &steady_.device_seconds_per_expert);
  Follow(lanes.host_seconds_per_expert, hysteresis_, &steady_.host_seconds_per_expert);
  Follow(lanes.host_seconds_per_row, hysteresis_, &steady_.host_seconds_per_row);
  Follow(lanes.host_slowdown, hysteresis_, &steady_.host_slowdown);
  steady_.link_queue_seconds = lanes.link_queue_seconds;
  steady_.queued_guesses = lanes.queued_guesses;
  return steady_;
}

void SplitPlanner::Sort(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> saved,
                        const api::LaneState& lanes, double weight) {
  order_.resize(misses.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto gain = [&](std::int32_t i) {
    return HostSeconds(misses[static_cast<std::size_t>(i)].rows, lanes) + weight * SavedOf(saved, i);
  };
  std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = gain(a);
    const double y = gain(b);
    if (x != y) {
      return x < y;
    }
    if (SavedOf(saved, a) != SavedOf(saved, b)) {
      return SavedOf(saved, a) < SavedOf(saved, b);
    }
    return a > b;
  });
}

std::size_t SplitPlanner::BestCount(absl::Span<const api::ExpertDemand> misses,
                                    absl::Span<const double> saved, const api::LaneState& lanes,
                                    double latest, double* seconds, double* cost) const {
  double to_save = 0.0;
  for (const std::int32_t i : order_) {
    to_save += SavedOf(saved, i);
  }
  double host = 0.0;
  std::size_t best = 0;
  *seconds = *cost = std::numeric_limits<double>::infinity();
  for (std::size_t on_host = 0; on_host <= order_.size(); ++on_host) {
    if (on_host > 0) {
      const std::int32_t i = order_[on_host - 1];
      host += HostSeconds(misses[static_cast<std::size_t>(i)].rows, lanes);
      to_save -= SavedOf(saved, i);
    }
    const auto copies = static_cast<std::int64_t>(order_.size() - on_host);
    const bool beside = copies > 0 || lanes.link_queue_seconds > 0.0;
    const double end = std::max(host * (beside ? lanes.host_slowdown : 1.0), CopySeconds(copies, lanes));
    if (end <= latest && end - to_save < *cost) {
      best = on_host;
      *seconds = end;
      *cost = end - to_save;
    }
  }
  return best;
}

PlannedSeconds SplitPlanner::Assign(absl::Span<const api::ExpertDemand> misses,
                                    absl::Span<const double> saved, SplitKind kind,
                                    const api::LaneState& measured, absl::Span<api::MissDecision> decisions) {
  const api::LaneState lanes = Steady(measured);
  std::fill(decisions.begin(), decisions.end(), api::MissDecision{});
  PlannedSeconds planned;
  planned.copy_only = CopySeconds(static_cast<std::int64_t>(misses.size()), lanes);
  planned.chosen = planned.split = planned.host_only = planned.copy_only;
  if (!host_lane(lanes)) {
    return planned;
  }
  planned.host_only = 0.0;
  for (const api::ExpertDemand& miss : misses) {
    planned.host_only += HostSeconds(miss.rows, lanes);
  }
  planned.host_only *= lanes.link_queue_seconds > 0.0 ? lanes.host_slowdown : 1.0;

  constexpr double kAnyTime = std::numeric_limits<double>::infinity();
  double cost = 0.0;
  Sort(misses, saved, lanes, 0.0);
  std::size_t on_host = BestCount(misses, {}, lanes, kAnyTime, &planned.split, &cost);
  planned.chosen = planned.split;
  if (kind == SplitKind::kCopyOnly) {
    planned.chosen = planned.copy_only;
    on_host = 0;
  } else if (kind == SplitKind::kHostOnly) {
    planned.chosen = planned.host_only;
    on_host = misses.size();
  } else if (!saved.empty()) {
    const double latest = std::min(kLaterThanBest * planned.split,
                                   kLaterThanStatic * std::min(planned.copy_only, planned.host_only));
    on_host = BestCount(misses, saved, lanes, latest, &planned.chosen, &cost);
    best_ = order_;
    double other_seconds = 0.0;
    double other_cost = 0.0;
    Sort(misses, saved, lanes, 1.0);
    const std::size_t other = BestCount(misses, saved, lanes, latest, &other_seconds, &other_cost);
    if (other_cost < cost) {
      on_host = other;
      planned.chosen = other_seconds;
    } else {
      order_.swap(best_);
    }
  }
  for (std::size_t n = 0; n < on_host; ++n) {
    decisions[static_cast<std::size_t>(order_[n])].serving = api::ServingDecision::kHost;
  }
  return planned;
}

}  // namespace comoe::routing
