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

absl::Status Stream::Put(std::byte* /*target*/, const void* /*data*/, std::size_t /*bytes*/) {
  return absl::UnimplementedError("only a device apart from the host has memory to put something to");
}

absl::Status Stream::BeginCapture() {
  return absl::UnimplementedError("work of this stream is run, and not kept");
}
absl::StatusOr<std::unique_ptr<Stream::Captured>> Stream::EndCapture() { return BeginCapture(); }
absl::Status Stream::Replay(Captured& /*work*/) { return BeginCapture(); }

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
