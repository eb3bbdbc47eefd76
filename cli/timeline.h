// `--timeline FILE`: what every lane of a device did during some steps, as trace-event JSON (Perfetto,
// chrome://tracing).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "engine/api/expert_director.h"
#include "engine/base/sync.h"
#include "engine/device/device.h"

namespace comoe::cli {

// Thread-safe. Keeps spans in memory until `steps` steps have ended (or until it is destroyed), then writes
// the file, whole or not at all; a failure is logged. What goes on when the first step begins is kept from
// then on.
class Timeline final : public device::TimelineSink {
 public:
  Timeline(std::string path, std::int64_t steps, const device::Device& device);
  ~Timeline() override;

  void Add(absl::string_view lane, const base::Stage& stage, std::optional<base::WaitEdge> edge,
           double begin_seconds, double end_seconds, std::size_t bytes) override;

  void BeginStep(std::uint64_t step, std::int64_t rows);
  void EndStep();

 private:
  struct Span {
    int lane = 0;
    base::Stage stage;
    std::optional<base::WaitEdge> edge;
    double begin = 0.0;
    double end = 0.0;
    std::size_t bytes = 0;
  };
  struct Step {
    std::uint64_t id = 0;
    std::int64_t rows = 0;
    double begin = 0.0;
    double end = 0.0;
  };
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const std::int64_t max_steps_;
  const device::Device& device_;

  base::Mutex mutex_;
  bool written_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
  std::vector<Step> steps_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<std::string, int> lanes_ ABSL_GUARDED_BY(mutex_);
};

// A director that decides as `inner` does and tells the timeline where steps begin and end.
std::unique_ptr<api::ExpertDirector> MakeTimelineDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                          std::shared_ptr<Timeline> timeline);

}  // namespace comoe::cli
