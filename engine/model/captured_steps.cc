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
  ++clock_;
  if (entries_.size() >= kMostKept && !entries_.contains(stretch)) {
    COMOE_ASSIGN_OR_RETURN(const bool room, MakeRoom(stream));
    if (!room) {
      return queue();
    }
  }
  Entry& entry = entries_[stretch];
  entry.last_used = clock_;
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
  if (std::exchange(warned_, true)) {
    return;
  }
  base::Logf(base::LogLevel::kWarning, "engine",
             "a stretch of a step cannot be captured, and is queued every time: %s",
             std::string(status.message()));
}

// What was only seen goes first. Of what was captured only what has not been used for long: where more
// stretches take turns than are kept, each would make way for the next and none be replayed.
absl::StatusOr<bool> CapturedSteps::MakeRoom(device::Stream& stream) {
  const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
    const bool a_works = a.second.work != nullptr;
    const bool b_works = b.second.work != nullptr;
    return a_works == b_works ? a.second.last_used < b.second.last_used : b_works;
  });
  if (oldest->second.work != nullptr) {
    if (clock_ - oldest->second.last_used < kLongUnused) {
      return false;
    }
    COMOE_RETURN_IF_ERROR(stream.Synchronize());  // it may still run
    --kept_;
  }
  entries_.erase(oldest);
  return true;
}

}  // namespace comoe::model
