#include "engine/device/cuda/cuda_device.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/cuda/cuda_context.h"
#include "engine/device/cuda/cuda_events.h"
#include "engine/device/cuda/cuda_host_stream.h"
#include "engine/device/cuda/cuda_meter.h"
#include "engine/device/cuda/cuda_notifier.h"
#include "engine/device/cuda/cuda_stream.h"

namespace comoe::device {
namespace {

constexpr int kOldestMajor = 8;  // the kernels use asynchronous copies and BF16 matrix units

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaPlugin& plugin, const CudaOptions& options, const CudaProperties& properties)
      : options_(options),
        properties_(properties),
        host_(MakeCpuDevice(1)),
        context_(plugin, options.ordinal, options.one_stream),
        events_(context_, options.times),
        meter_(options.times),
        notifier_(context_) {}

  absl::Status Init() { return events_.Init(); }

  DeviceId id() const override { return {DeviceKind::kCuda, options_.ordinal}; }
  std::string Describe() const override;
  bool host_accessible() const override { return false; }
  bool row_major_weights() const override { return true; }
  MemoryInfo memory(MemoryKind kind) const override;
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name, StreamKind kind) override;
  void Notify(const Event& event, EventListener& listener, std::uint64_t tag) override {
    notifier_.Notify(event, listener, tag);
  }
  double Now() const override { return context_.Now(); }
  absl::Status health() const override { return context_.poison(); }
  DeviceTimes times() const override {
    if (!options_.times) {
      return {};
    }
    events_.Align();
    return meter_.times(context_.Now());
  }
  void SetTimeline(TimelineSink* sink) override { meter_.SetSink(sink); }

  std::uint64_t pageable_copies() const { return context_.pageable_copies(); }

 private:
  absl::Status DoesNotFit(MemoryKind kind, std::size_t bytes, const absl::Status& why) const;

  const CudaOptions options_;
  const CudaProperties properties_;
  const std::unique_ptr<Device> host_;
  CudaContext context_;
  mutable CudaEvents events_;
  mutable CudaMeter meter_;
  CudaNotifier notifier_;
};

std::string CudaDevice::Describe() const {
  int driver = 0;
  int runtime = 0;
  context_.api().versions(&driver, &runtime);
  return absl::StrFormat(
      "cuda: %s (device %d, compute capability %d.%d, %d multiprocessors, %s, driver for "
      "CUDA %d.%d)",
      properties_.name, options_.ordinal, properties_.compute_major, properties_.compute_minor,
      properties_.multiprocessors, base::FormatBytes(properties_.total_bytes), driver / 1000,
      driver % 1000 / 10);
}

MemoryInfo CudaDevice::memory(MemoryKind kind) const {
  if (kind == MemoryKind::kDevice) {
    context_.Enter();
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    if (context_.api().memory_info(&free_bytes, &total_bytes) != 0) {
      context_.api().take_last_error();
    }
    return {total_bytes, free_bytes};
  }
  const base::HostMemory host = base::ReadHostMemory();
  return {host.limit_bytes, host.available_bytes};
}

absl::Status CudaDevice::DoesNotFit(MemoryKind kind, std::size_t bytes, const absl::Status& why) const {
  if (!absl::IsResourceExhausted(why) && kind == MemoryKind::kDevice) {
    return why;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no ", base::FormatBytes(bytes), " of ",
                   kind == MemoryKind::kDevice ? "device memory (" : "page-locked memory (",
                   base::FormatBytes(memory(kind).free_bytes), " free; ", std::string(why.message()), ")"));
}

absl::StatusOr<Buffer> CudaDevice::Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) {
  if (kind == MemoryKind::kHost) {
    return host_->Allocate(kind, bytes, alignment);
  }
  context_.Enter();
  const CudaDeviceApi& api = context_.api();
  // CUDA aligns to 256 bytes at least.
  const std::size_t extra = alignment > 256 ? alignment : 0;
  const std::size_t total = std::max<std::size_t>(bytes, 1) + extra;
  void* data = nullptr;
  void* on_device = nullptr;
  absl::Status status = kind == MemoryKind::kDevice
                            ? context_.Check(api.allocate(&data, total), "cudaMalloc")
                            : context_.Check(api.allocate_pinned(&data, &on_device, total), "cudaHostAlloc");
  if (!status.ok()) {
    return DoesNotFit(kind, bytes, status);
  }
  auto* const whole = static_cast<std::byte*>(data);
  const auto address = reinterpret_cast<std::uintptr_t>(whole);
  std::byte* const aligned = extra > 0 ? whole + (base::AlignUp(address, alignment) - address) : whole;
  const bool on_card = kind == MemoryKind::kDevice;
  context_.AddRange(aligned, bytes, kind);
  return Buffer(aligned, bytes, kind, [this, whole, on_card](std::byte* freed) {
    context_.RemoveRange(freed);
    context_.Enter();
    const CudaDeviceApi& functions = context_.api();
    context_.Check(on_card ? functions.release(whole) : functions.release_pinned(whole), "cudaFree")
        .IgnoreError();
  });
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream(absl::string_view name, StreamKind kind) {
  if (kind == StreamKind::kHost) {
    return std::unique_ptr<Stream>(
        std::make_unique<CudaHostStream>(context_, events_, meter_, name, options_.host_threads));
  }
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                         CudaStream::Create(*this, context_, events_, meter_, name, kind));
  if (options_.ranges && kind == StreamKind::kCompute) {
    stream->UseRanges();
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

}  // namespace

absl::StatusOr<CudaProperties> CheckCudaDevice(const CudaPlugin& plugin, int ordinal) {
  const CudaDeviceApi& api = *plugin.device;
  int count = 0;
  if (const int error = api.device_count(&count); error != 0) {
    api.take_last_error();
    int driver = 0;
    int runtime = 0;
    const bool none = api.versions(&driver, &runtime) == 0 && driver == 0;
    return absl::UnavailableError(absl::StrCat(
        "no CUDA device: ", none ? "there is no NVIDIA driver here, " : "", api.error_name(error), " (",
        api.error_text(error), "); `comoe doctor --device cuda` looks for the card"));
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(absl::StrCat("no CUDA device ", ordinal, ": there are ", count, " here"));
  }
  CudaProperties properties;
  if (const int error = api.properties(ordinal, &properties); error != 0) {
    return CudaError(api, error, "cudaGetDeviceProperties");
  }
  if (properties.compute_major < kOldestMajor) {
    return absl::UnavailableError(absl::StrCat(properties.name, " has compute capability ",
                                               properties.compute_major, ".", properties.compute_minor,
                                               "; CoMoE needs ", kOldestMajor, ".0 or later"));
  }
  return properties;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaPlugin& plugin, const CudaOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const CudaProperties properties, CheckCudaDevice(plugin, options.ordinal));
  const CudaDeviceApi& api = *plugin.device;
  if (const int error = api.set_device(options.ordinal); error != 0) {
    api.take_last_error();
    return absl::UnavailableError(absl::StrCat("CUDA device ", options.ordinal, " cannot be used: ",
                                               api.error_name(error), " (", api.error_text(error), ")"));
  }
  auto device = std::make_unique<CudaDevice>(plugin, options, properties);
  COMOE_RETURN_IF_ERROR(device->Init());
  return std::unique_ptr<Device>(std::move(device));
}

std::uint64_t PageableCopies(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  return cuda == nullptr ? 0 : cuda->pageable_copies();
}

}  // namespace comoe::device
