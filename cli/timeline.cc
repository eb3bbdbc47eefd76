#include "cli/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/forwarding_director.h"

namespace comoe::cli {
namespace {

// More than this is not looked at, and would fill the memory of who forgot it.
constexpr std::size_t kMaxSpans = 4'000'000;
constexpr double kMicroseconds = 1e6;

std::string NameOf(const base::Stage& stage, std::optional<base::WaitEdge> edge) {
  std::string name = edge.has_value() ? absl::StrCat("wait: ", base::WaitEdgeName(*edge))
                                      : std::string(base::StageKindName(stage.kind));
  if (stage.kind == base::StageKind::kCopy && !edge.has_value()) {
    name = absl::StrCat("copy: ", base::CopyReasonName(stage.reason));
  }
  if (stage.layer >= 0) {
    absl::StrAppend(&name, " L", stage.layer);
  }
  if (stage.expert >= 0) {
    absl::StrAppend(&name, " E", stage.expert);
  }
  return name;
}

class TimelineDirector final : public routing::ForwardingDirector {
 public:
  TimelineDirector(std::unique_ptr<api::ExpertDirector> inner, std::shared_ptr<Timeline> timeline)
      : ForwardingDirector(std::move(inner)), timeline_(std::move(timeline)) {}

  void BeginStep(const api::StepPlan& plan) override {
    timeline_->BeginStep(plan.step.value, plan.num_rows());
    ForwardingDirector::BeginStep(plan);
  }
  void EndStep() override {
    ForwardingDirector::EndStep();
    timeline_->EndStep();
  }

 private:
  const std::shared_ptr<Timeline> timeline_;
};

}  // namespace

Timeline::Timeline(std::string path, std::int64_t steps, const device::Device& device)
    : path_(std::move(path)), max_steps_(steps), device_(device) {}

Timeline::~Timeline() {
  base::MutexLock lock(&mutex_);
  Write();
}

void Timeline::Add(absl::string_view lane, const base::Stage& stage, std::optional<base::WaitEdge> edge,
                   double begin_seconds, double end_seconds, std::size_t bytes) {
  base::MutexLock lock(&mutex_);
  if (written_ || steps_.empty() || spans_.size() >= kMaxSpans) {
    return;
  }
  begin_seconds = std::max(begin_seconds, steps_.front().begin);
  if (end_seconds <= begin_seconds) {
    return;
  }
  const int id = lanes_.emplace(std::string(lane), static_cast<int>(lanes_.size()) + 1).first->second;
  spans_.push_back({id, stage, edge, begin_seconds, end_seconds, bytes});
}

void Timeline::BeginStep(std::uint64_t step, std::int64_t rows) {
  const double now = device_.Now();
  base::MutexLock lock(&mutex_);
  if (!written_) {
    steps_.push_back({step, rows, now, now});
  }
}

void Timeline::EndStep() {
  const double now = device_.Now();
  base::MutexLock lock(&mutex_);
  if (written_ || steps_.empty()) {
    return;
  }
  steps_.back().end = now;
  if (static_cast<std::int64_t>(steps_.size()) >= max_steps_) {
    Write();
  }
}

void Timeline::Write() {
  if (written_ || steps_.empty()) {
    return;
  }
  written_ = true;
  const double zero = steps_.front().begin;
  nlohmann::json events = nlohmann::json::array();
  const auto name_lane = [&events](const std::string& name, int id) {
    events.push_back(
        {{"ph", "M"}, {"pid", 1}, {"tid", id}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  };
  events.push_back(
      {{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", device_.Describe()}}}});
  name_lane("steps", 0);
  for (const auto& [name, id] : lanes_) {
    name_lane(name, id);
  }
  for (const Step& step : steps_) {
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", 0},
                      {"name", absl::StrCat("step ", step.id)},
                      {"ts", (step.begin - zero) * kMicroseconds},
                      {"dur", (step.end - step.begin) * kMicroseconds},
                      {"args", {{"rows", step.rows}}}});
  }
  for (const Span& span : spans_) {
    nlohmann::json args = {{"layer", span.stage.layer}, {"expert", span.stage.expert}};
    if (span.bytes > 0) {
      args["bytes"] = span.bytes;
    }
    if (span.stage.kind == base::StageKind::kCopy) {
      args["reason"] = std::string(base::CopyReasonName(span.stage.reason));
    }
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", span.lane},
                      {"name", NameOf(span.stage, span.edge)},
                      {"cat", span.edge.has_value() ? "wait" : "work"},
                      {"ts", (span.begin - zero) * kMicroseconds},
                      {"dur", (span.end - span.begin) * kMicroseconds},
                      {"args", std::move(args)}});
  }
  const std::string temporary = absl::StrCat(path_, ".tmp");
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << nlohmann::json({{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}).dump() << "\n";
    if (!file.flush() || std::rename(temporary.c_str(), path_.c_str()) != 0) {
      base::Logf(base::LogLevel::kError, "timeline", "cannot write %s: %s", path_, std::strerror(errno));
      std::remove(temporary.c_str());
      return;
    }
  }
  base::Logf(base::LogLevel::kInfo, "timeline", "%d steps, %d spans in %s", steps_.size(), spans_.size(),
             path_);
  spans_ = {};
}

std::unique_ptr<api::ExpertDirector> MakeTimelineDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                          std::shared_ptr<Timeline> timeline) {
  return std::make_unique<TimelineDirector>(std::move(inner), std::move(timeline));
}

}  // namespace comoe::cli
