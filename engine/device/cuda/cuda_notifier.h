// Tells listeners that events have happened, from a thread that looks.
//
// Looking costs least: a callback on the stream holds it up for 12 to 21 us a copy, and a thread that blocks
// on one event hears late of the others. The thread sleeps while nobody waits, and looks every few tens of
// microseconds while somebody does; a copy of an expert takes that and more.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "engine/base/sync.h"
#include "engine/device/cuda/cuda_context.h"
#include "engine/device/device.h"

namespace comoe::device {

// Thread-safe.
class CudaNotifier {
 public:
  explicit CudaNotifier(CudaContext& context);
  // Whoever is still to be told is not.
  ~CudaNotifier();

  // On the notifier's thread, or at once where it has happened already.
  void Notify(const Event& event, EventListener& listener, std::uint64_t tag) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Notice {
    Event event;
    EventListener* listener = nullptr;
    std::uint64_t tag = 0;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells whom the events that have happened concern; how many.
  std::size_t Tell();

  CudaContext& context_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Notice> arrived_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Notice> watched_;  // the thread's
  std::thread thread_;
};

}  // namespace comoe::device
