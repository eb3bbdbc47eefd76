#include "engine/device/cuda/cuda_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::device {
namespace {

// cudaError_t values that do not mean a failure of the device.
constexpr int kMemoryAllocation = 2;
constexpr int kInsufficientDriver = 35;
constexpr int kStubLibrary = 34;
constexpr int kNoDevice = 100;
constexpr int kSystemDriverMismatch = 803;

}  // namespace

absl::Status CudaError(const CudaDeviceApi& api, int error, absl::string_view call) {
  const std::string text =
      absl::StrCat("cuda: ", call, ": ", api.error_name(error), " (", api.error_text(error), ")");
  switch (error) {
    case kMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case kInsufficientDriver:
    case kStubLibrary:
    case kNoDevice:
    case kSystemDriverMismatch:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status CudaContext::Fail(int error, absl::string_view call) {
  absl::Status status = CudaError(api(), error, call);
  api().take_last_error();  // so that the next launch is not blamed for it
  return api().poisons(error) != 0 ? Poison(status) : status;
}

void CudaContext::Lose(int error, absl::string_view call) { Poison(Fail(error, call)).IgnoreError(); }

absl::Status CudaContext::Poison(const absl::Status& error) {
  base::MutexLock lock(&mutex_);
  if (poison_.ok()) {
    poison_ = absl::InternalError(
        absl::StrCat(error.message(), "; the device is unusable until the program is started again"));
    poisoned_.store(true, std::memory_order_release);
  }
  return poison_;
}

CudaContext::~CudaContext() {
  if (the_stream_ != nullptr) {
    Enter();
    api().destroy_stream(the_stream_);
  }
}

absl::StatusOr<void*> CudaContext::MakeStream(bool high_priority) {
  Enter();
  void* made = nullptr;
  if (!one_stream_) {
    COMOE_RETURN_IF_ERROR(Check(api().create_stream(&made, high_priority ? 1 : 0), "cudaStreamCreate"));
    return made;
  }
  base::MutexLock lock(&mutex_);
  if (the_stream_ == nullptr) {
    if (const int error = api().create_stream(&made, 0); error != 0) {
      return CudaError(api(), error, "cudaStreamCreate");
    }
    the_stream_ = made;
  }
  return the_stream_;
}

void CudaContext::DropStream(void* stream) {
  if (!one_stream_) {
    Enter();
    api().destroy_stream(stream);
  }
}

absl::Status CudaContext::poison() const {
  if (!poisoned()) {
    return absl::OkStatus();
  }
  base::MutexLock lock(&mutex_);
  return poison_;
}

MemoryKind CudaContext::KindOf(const std::byte* data) const {
  base::MutexLock lock(&mutex_);
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), data,
                       [](const std::byte* at, const Range& range) { return at < range.begin; });
  if (after == ranges_.begin()) {
    return MemoryKind::kHost;
  }
  const Range& range = *(after - 1);
  return data < range.end ? range.kind : MemoryKind::kHost;
}

void CudaContext::AddRange(const std::byte* data, std::size_t bytes, MemoryKind kind) {
  base::MutexLock lock(&mutex_);
  const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), data,
                                   [](const std::byte* to, const Range& range) { return to < range.begin; });
  ranges_.insert(at, {data, data + bytes, kind});
  pinned_bytes_ += kind == MemoryKind::kPinned ? bytes : 0;
}

void CudaContext::RemoveRange(const std::byte* data) {
  base::MutexLock lock(&mutex_);
  const auto found = std::find_if(ranges_.begin(), ranges_.end(),
                                  [data](const Range& range) { return range.begin == data; });
  if (found != ranges_.end()) {
    pinned_bytes_ -=
        found->kind == MemoryKind::kPinned ? static_cast<std::uint64_t>(found->end - found->begin) : 0;
    ranges_.erase(found);
  }
}

std::uint64_t CudaContext::pinned_bytes() const {
  base::MutexLock lock(&mutex_);
  return pinned_bytes_;
}

std::optional<base::CopyDirection> CudaContext::DirectionOf(MemoryKind source, MemoryKind target) {
  const bool from_device = source == MemoryKind::kDevice;
  const bool to_device = target == MemoryKind::kDevice;
  if (from_device && to_device) {
    return std::nullopt;
  }
  if (from_device || to_device) {
    return from_device ? base::CopyDirection::kDeviceToHost : base::CopyDirection::kHostToDevice;
  }
  return base::CopyDirection::kHostToHost;
}

}  // namespace comoe::device
