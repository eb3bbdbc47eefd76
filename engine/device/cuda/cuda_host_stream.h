// Streams of kind kHost on a CUDA device: work of the CPU (experts computed where they lie, copies within
// host memory, reads from disk), in order, on a thread of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/sync.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/cuda/cuda_context.h"
#include "engine/device/cuda/cuda_events.h"
#include "engine/device/cuda/cuda_meter.h"
#include "engine/device/device.h"
#include "engine/device/emulated/ring.h"

namespace comoe::device {

// Used by one thread at a time (which may change), listeners included; those must not Synchronize it. What is
// left when it is destroyed is dropped, and its events are CANCELLED.
class CudaHostStream final : public Stream {
 public:
  // `threads` compute when the work asks for a CPU stream. All outlive it.
  CudaHostStream(CudaContext& context, CudaEvents& events, CudaMeter& meter, absl::string_view name,
                 int threads);
  ~CudaHostStream() override;
  CudaHostStream(const CudaHostStream&) = delete;
  CudaHostStream& operator=(const CudaHostStream&) = delete;

  DeviceId device() const override { return {DeviceKind::kCuda, context_.ordinal()}; }
  void SetStage(const base::Stage& stage) override { stage_ = stage; }
  // Within host memory only.
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  absl::Status Submit(HostWork& work) override;
  absl::StatusOr<Event> Record() override;
  // Never blocks.
  absl::Status Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) override;
  absl::Status Synchronize() override;

 private:
  struct Op {
    enum class Kind { kCopy, kWork, kRecord, kWait };
    Kind kind = Kind::kRecord;
    base::Stage stage;
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    std::size_t bytes = 0;
    HostWork* work = nullptr;
    Event event;
    absl::Duration limit;
  };
  // What work runs on: the host, with threads that are started when they are first asked for.
  class Inside final : public Stream {
   public:
    Inside(std::string name, int threads) : name_(std::move(name)), threads_(threads) {}
    DeviceId device() const override { return {DeviceKind::kCpu, 0}; }
    CpuStream* cpu() override;
    absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
    absl::StatusOr<Event> Record() override { return Event(); }
    absl::Status Wait(const Event& event, base::WaitEdge /*edge*/, absl::Duration limit) override {
      return event.Synchronize(limit);
    }
    absl::Status Synchronize() override { return absl::OkStatus(); }

   private:
    const std::string name_;
    const int threads_;
    std::unique_ptr<base::ThreadPool> pool_;
    std::optional<CpuStream> cpu_;
  };

  // Its number.
  std::uint64_t Push(Op op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // What went wrong since the last event goes to the next.
  void Execute(const Op& op, absl::Status& failed);

  CudaContext& context_;
  CudaEvents& events_;
  CudaMeter& meter_;
  const std::size_t lane_;
  base::Stage stage_;  // the callers'
  Inside inside_;      // the thread's
  std::atomic<bool> stop_{false};
  std::atomic<bool> waiting_{false};  // there are ops; changed under mutex_

  base::Mutex mutex_;
  base::CondVar changed_;
  Ring<Op> ops_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // since the last Synchronize
  std::thread thread_;
};

}  // namespace comoe::device
