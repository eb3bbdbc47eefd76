#include "engine/device/device.h"

namespace comoe::device {

absl::string_view DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kEmulated:
      return "emulated";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

absl::Status Stream::Submit(HostWork& /*work*/) {
  return absl::UnimplementedError("only a host stream runs host work");
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr && deleter_) {
      deleter_(data_);
    }
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    kind_ = other.kind_;
    deleter_ = std::move(other.deleter_);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr && deleter_) {
    deleter_(data_);
  }
}

}  // namespace comoe::device
