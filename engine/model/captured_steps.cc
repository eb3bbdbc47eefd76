#include "engine/model/captured_steps.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace comoe::model {

absl::Status CapturedSteps::Run(const Stretch& stretch, device::Stream& stream,
                                absl::FunctionRef<absl::Status()> queue) {
  if (version_ != stream.capture_version()) {
    COMOE_RETURN_IF_ERROR(stream.Synchronize());  // what is kept may still run
    entries_.clear();
    kept_ = 0;
    version_ = stream.capture_version();
  }
  COMOE_RETURN_IF_ERROR(MakeRoom(stream));
  Entry& entry = entries_[stretch];
  entry.last_used = ++clock_;
  if (entry.work == nullptr && !entry.refused && entry.seen >= kSeenBefore &&
      captured_in_step_ < kCapturesPerStep) {
    ++captured_in_step_;
    Capture(entry, stream, queue);
  }
  if (entry.work != nullptr) {
    ++replays_;
    return stream.Replay(*entry.work);
  }
  entry.seen = std::min(entry.seen + 1, kSeenBefore);
  return queue();
}

void CapturedSteps::Capture(Entry& entry, device::Stream& stream, absl::FunctionRef<absl::Status()> queue) {
  absl::Status status = stream.BeginCapture();
  if (status.ok()) {
    status = queue();
    absl::StatusOr<std::unique_ptr<device::Stream::Captured>> work = stream.EndCapture();
    status.Update(work.status());
    if (status.ok()) {
      entry.work = *std::move(work);
      ++kept_;
      return;
    }
  }
  entry.refused = true;
  base::Logf(base::LogLevel::kWarning, "engine",
             "a stretch of a step cannot be captured, and is queued every time: %s",
             std::string(status.message()));
}

// Of what was only seen as well.
absl::Status CapturedSteps::MakeRoom(device::Stream& stream) {
  if (entries_.size() < kMostKept) {
    return absl::OkStatus();
  }
  const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    return a.second.last_used < b.second.last_used;
  });
  if (oldest->second.work != nullptr) {
    COMOE_RETURN_IF_ERROR(stream.Synchronize());
    --kept_;
  }
  entries_.erase(oldest);
  return absl::OkStatus();
}

}  // namespace comoe::model
