// Counts what a program asks of the CUDA driver, by name: for tools/gpu/step_watch.sh, which shows that a
// step neither allocates, nor uses a default stream, nor waits for the whole device.
//
// The driver loads it into any CUDA program when CUDA_INJECTION64_PATH names it; at the end of the program it
// writes the JSON file that COMOE_STEP_WATCH names: {"calls": {NAME: count}, "default_stream": {NAME:
// count}}. COMOE_CUPTI may name libcupti.so. Where anything of that is missing it writes a line to stderr,
// and the program runs on.
#include <cupti.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr std::size_t kCalls = CUPTI_DRIVER_TRACE_CBID_SIZE;

struct Count {
  std::atomic<const char*> name{nullptr};
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> on_default_stream{0};
};

std::array<Count, kCalls>& Counts() {
  static auto& counts = *new std::array<Count, kCalls>();
  return counts;
}

bool IsDefault(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

#define COMOE_ON_STREAM(function)          \
  case CUPTI_DRIVER_TRACE_CBID_##function: \
    return IsDefault(static_cast<const function##_params*>(params)->hStream);
#define COMOE_ON_STREAM_OF_THREAD(function)       \
  COMOE_ON_STREAM(function)                       \
  case CUPTI_DRIVER_TRACE_CBID_##function##_ptsz: \
    return IsDefault(static_cast<const function##_ptsz_params*>(params)->hStream);

// Whether the call queues its work on a default stream. Those whose names say so (cuMemcpy, cuMemsetD8:
// without a stream) are left to who reads the counts.
bool OnDefaultStream(CUpti_CallbackId id, const void* params) {
  switch (id) {
    COMOE_ON_STREAM_OF_THREAD(cuLaunchKernel)
    COMOE_ON_STREAM_OF_THREAD(cuLaunchCooperativeKernel)
    COMOE_ON_STREAM_OF_THREAD(cuLaunchHostFunc)
    COMOE_ON_STREAM_OF_THREAD(cuGraphLaunch)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpyAsync)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpyHtoDAsync_v2)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpyDtoHAsync_v2)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpyDtoDAsync_v2)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpy2DAsync_v2)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpy3DAsync_v2)
    COMOE_ON_STREAM_OF_THREAD(cuMemcpyPeerAsync)
    COMOE_ON_STREAM_OF_THREAD(cuMemsetD8Async)
    COMOE_ON_STREAM_OF_THREAD(cuMemsetD16Async)
    COMOE_ON_STREAM_OF_THREAD(cuMemsetD32Async)
    COMOE_ON_STREAM_OF_THREAD(cuMemsetD2D8Async)
    COMOE_ON_STREAM_OF_THREAD(cuMemsetD2D32Async)
    COMOE_ON_STREAM_OF_THREAD(cuMemAllocAsync)
    COMOE_ON_STREAM_OF_THREAD(cuMemFreeAsync)
    COMOE_ON_STREAM_OF_THREAD(cuEventRecord)
    COMOE_ON_STREAM_OF_THREAD(cuEventRecordWithFlags)
    COMOE_ON_STREAM_OF_THREAD(cuStreamSynchronize)
    COMOE_ON_STREAM_OF_THREAD(cuStreamAddCallback)
    COMOE_ON_STREAM_OF_THREAD(cuStreamWaitEvent)
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
      return IsDefault(static_cast<const cuLaunchKernelEx_params*>(params)->config->hStream);
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
      return IsDefault(static_cast<const cuLaunchKernelEx_ptsz_params*>(params)->config->hStream);
    default:
      return false;
  }
}

void CUPTIAPI OnCall(void* /*user*/, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || call->callbackSite != CUPTI_API_ENTER || id >= kCalls) {
    return;
  }
  Count& count = Counts()[id];
  count.name.store(call->functionName, std::memory_order_relaxed);
  count.calls.fetch_add(1, std::memory_order_relaxed);
  if (OnDefaultStream(id, call->functionParams)) {
    count.on_default_stream.fetch_add(1, std::memory_order_relaxed);
  }
}

void WriteTable(std::FILE* file, const char* title, std::atomic<std::uint64_t> Count::*number, bool last) {
  std::fprintf(file, "  \"%s\": {", title);
  const char* separator = "";
  for (const Count& count : Counts()) {
    if (const std::uint64_t n = (count.*number).load(); n > 0) {
      std::fprintf(file, "%s\n    \"%s\": %llu", separator, count.name.load(),
                   static_cast<unsigned long long>(n));
      separator = ",";
    }
  }
  std::fprintf(file, "\n  }%s\n", last ? "" : ",");
}

void Write() {
  const char* path = std::getenv("COMOE_STEP_WATCH");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "step_watch: COMOE_STEP_WATCH names no file that can be written\n");
    return;
  }
  std::fprintf(file, "{\n");
  WriteTable(file, "calls", &Count::calls, false);
  WriteTable(file, "default_stream", &Count::on_default_stream, true);
  std::fprintf(file, "}\n");
  std::fclose(file);
}

void* OpenCupti() {
  const char* asked = std::getenv("COMOE_CUPTI");
  for (const char* name : {asked, "libcupti.so.13", "libcupti.so"}) {
    if (void* library = name == nullptr ? nullptr : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
        library != nullptr) {
      return library;
    }
  }
  std::fprintf(stderr, "step_watch: no libcupti: %s\n", ::dlerror());
  return nullptr;
}

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

// Called by the driver when it starts.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  void* const cupti = OpenCupti();
  if (cupti == nullptr) {
    return 1;
  }
  const auto subscribe = Find<decltype(&cuptiSubscribe)>(cupti, "cuptiSubscribe");
  const auto enable = Find<decltype(&cuptiEnableDomain)>(cupti, "cuptiEnableDomain");
  CUpti_SubscriberHandle handle = nullptr;
  if (subscribe == nullptr || enable == nullptr || subscribe(&handle, OnCall, nullptr) != CUPTI_SUCCESS ||
      enable(1, handle, CUPTI_CB_DOMAIN_DRIVER_API) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "step_watch: CUPTI does not let us listen\n");
    return 1;
  }
  Counts();
  std::atexit(Write);
  return 1;
}
