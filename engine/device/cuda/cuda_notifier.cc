#include "engine/device/cuda/cuda_notifier.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace comoe::device {
namespace {

constexpr std::size_t kUsualNotices = 64;
constexpr int kEagerLooks = 64;  // without a nap
constexpr std::chrono::microseconds kNap(10);
constexpr unsigned long kTimerSlackNanoseconds = 1000;  // else a nap is 50 us longer

}  // namespace

CudaNotifier::CudaNotifier(CudaContext& context) : context_(context) {
  arrived_.reserve(kUsualNotices);
  watched_.reserve(kUsualNotices);
  thread_ = std::thread([this] { Run(); });
}

CudaNotifier::~CudaNotifier() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void CudaNotifier::Notify(const Event& event, EventListener& listener, std::uint64_t tag) {
  if (event.Done()) {
    listener.OnEvent(tag);
    return;
  }
  base::MutexLock lock(&mutex_);
  arrived_.push_back({event, &listener, tag});
  changed_.SignalAll();
}

void CudaNotifier::Run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);
  context_.api().set_device(context_.ordinal());
  int looks = 0;
  for (;;) {
    {
      base::MutexLock lock(&mutex_);
      while (watched_.empty() && arrived_.empty() && !stopping_) {
        changed_.Wait(&mutex_);
      }
      if (stopping_) {
        return;
      }
      if (!arrived_.empty()) {
        looks = 0;
        std::move(arrived_.begin(), arrived_.end(), std::back_inserter(watched_));
        arrived_.clear();
      }
    }
    if (Tell() > 0) {
      looks = 0;
    } else if (++looks > kEagerLooks) {
      std::this_thread::sleep_for(kNap);
    } else {
      std::this_thread::yield();
    }
  }
}

// In the order in which they came: a listener's next copy may be queued from within.
std::size_t CudaNotifier::Tell() {
  std::size_t told = 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i].event.Done()) {
      const Notice notice = std::exchange(watched_[i], Notice());
      notice.listener->OnEvent(notice.tag);
      ++told;
    } else {
      if (kept != i) {
        watched_[kept] = std::move(watched_[i]);
      }
      ++kept;
    }
  }
  watched_.resize(kept);
  return told;
}

}  // namespace comoe::device
