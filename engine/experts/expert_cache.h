// The only way to an expert's bytes: Acquire gives a lease, and while the lease lives the bytes stay where
// they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::experts {

// RAII pin of one expert's slot. Move-only. It must outlive every copy and kernel that touches the bytes:
// release it after their event has happened. Not thread-safe; belongs to the engine thread. The cache
// outlives its leases.
class Lease {
 public:
  Lease() = default;
  Lease(base::ExpertKey key, tensor::ExpertView view, std::atomic<std::int32_t>* pins)
      : key_(key), view_(view), pins_(pins) {
    pins_->fetch_add(1, std::memory_order_relaxed);
  }
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Release();
      key_ = other.key_;
      view_ = other.view_;
      pins_ = std::exchange(other.pins_, nullptr);
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { Release(); }

  base::ExpertKey key() const { return key_; }
  const tensor::ExpertView& view() const { return view_; }

 private:
  void Release() {
    if (pins_ != nullptr) {
      std::exchange(pins_, nullptr)->fetch_sub(1, std::memory_order_release);
    }
  }

  base::ExpertKey key_;
  tensor::ExpertView view_;
  std::atomic<std::int32_t>* pins_ = nullptr;
};

// Owned by the engine thread.
class ExpertCache {
 public:
  virtual ~ExpertCache() = default;
  // Bytes that kernels queued on `stream` after this call may read. NOT_FOUND for a key the model does not
  // have; RESOURCE_EXHAUSTED when every slot is leased.
  virtual absl::StatusOr<Lease> Acquire(base::ExpertKey key, device::Stream& stream) = 0;
  // Leases alive: 0 between steps.
  virtual std::int64_t leased() const = 0;
};

}  // namespace comoe::experts
