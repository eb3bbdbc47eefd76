#include "engine/model/host_pace.h"

#include <algorithm>

namespace comoe::model {
namespace {

constexpr double kShareOfNew = 0.1;  // of a measurement in the mean
constexpr double kMost = 8.0;        // times as long as expected: a thread that was held up tells no more
constexpr double kForgotten = 0.002;

}  // namespace

void HostPace::Measured(double seconds, double expected, bool beside_copies) {
  if (seconds > 0.0) {  // and not NaN
    double& mean = beside_copies ? beside_ : alone_;
    mean += kShareOfNew * (std::min(seconds / expected, kMost) - mean);
  }
}

void HostPace::NotMeasured() {
  alone_ += kForgotten * (1.0 - alone_);
  beside_ += kForgotten * (alone_ - beside_);
}

void HostPace::Describe(api::LaneState& lanes) const {
  lanes.host_seconds_per_expert *= alone_;
  lanes.host_seconds_per_row *= alone_;
  lanes.host_slowdown = std::max(1.0, beside_ / alone_);
}

}  // namespace comoe::model
