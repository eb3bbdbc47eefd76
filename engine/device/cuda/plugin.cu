// The plugin's device half: thin calls of the CUDA runtime behind plain C functions (plugin_api.h). No state,
// no logic: that is in the host code which calls them.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "engine/device/cuda/plugin_api.h"

// Only where the plugin is built without kernels.
extern "C" __attribute__((weak)) const void* comoe_cuda_kernels() { return nullptr; }

namespace comoe::device {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

const char* ErrorName(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }
const char* ErrorText(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
int TakeLastError() { return cudaGetLastError(); }

int Versions(int* driver, int* runtime) {
  *driver = 0;
  *runtime = 0;
  if (const cudaError_t error = cudaDriverGetVersion(driver); error != cudaSuccess) {
    return error;
  }
  return cudaRuntimeGetVersion(runtime);
}

int DeviceCount(int* count) { return cudaGetDeviceCount(count); }

int Properties(int ordinal, CudaProperties* properties) {
  cudaDeviceProp found;
  if (const cudaError_t error = cudaGetDeviceProperties(&found, ordinal); error != cudaSuccess) {
    return error;
  }
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "%s", found.name);
  properties->compute_major = found.major;
  properties->compute_minor = found.minor;
  properties->multiprocessors = found.multiProcessorCount;
  properties->pci_domain = found.pciDomainID;
  properties->pci_bus = found.pciBusID;
  properties->pci_device = found.pciDeviceID;
  properties->copy_engines = found.asyncEngineCount;
  properties->can_map_host_memory = found.canMapHostMemory;
  properties->integrated = found.integrated;
  properties->total_bytes = found.totalGlobalMem;
  properties->l2_bytes = static_cast<std::uint64_t>(found.l2CacheSize);
  return cudaSuccess;
}

int SetDevice(int ordinal) { return cudaSetDevice(ordinal); }
int MemoryInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return cudaMemGetInfo(free_bytes, total_bytes);
}

int Allocate(void** data, std::size_t bytes) { return cudaMalloc(data, bytes); }
int Release(void* data) { return cudaFree(data); }

int AllocatePinned(void** data, void** on_device, std::size_t bytes) {
  *data = nullptr;
  if (const cudaError_t error = cudaHostAlloc(data, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
      error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = cudaHostGetDevicePointer(on_device, *data, 0);
  if (error != cudaSuccess) {
    cudaFreeHost(*data);
    *data = nullptr;
  }
  return error;
}
int ReleasePinned(void* data) { return cudaFreeHost(data); }

int CreateStream(void** stream, int high_priority) {
  int least = 0;
  int greatest = 0;
  if (const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest); error != cudaSuccess) {
    return error;
  }
  cudaStream_t made = nullptr;
  const cudaError_t error =
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, high_priority != 0 ? greatest : least);
  *stream = made;
  return error;
}
int DestroyStream(void* stream) { return cudaStreamDestroy(Stream(stream)); }
int QueryStream(void* stream) { return cudaStreamQuery(Stream(stream)); }
int SynchronizeStream(void* stream) { return cudaStreamSynchronize(Stream(stream)); }

int CreateEvent(void** event, int timing) {
  cudaEvent_t made = nullptr;
  const cudaError_t error =
      cudaEventCreateWithFlags(&made, timing != 0 ? cudaEventDefault : cudaEventDisableTiming);
  *event = made;
  return error;
}
int DestroyEvent(void* event) { return cudaEventDestroy(Event(event)); }
int RecordEvent(void* event, void* stream) { return cudaEventRecord(Event(event), Stream(stream)); }
int QueryEvent(void* event) { return cudaEventQuery(Event(event)); }
int SynchronizeEvent(void* event) { return cudaEventSynchronize(Event(event)); }
int WaitEvent(void* stream, void* event) { return cudaStreamWaitEvent(Stream(stream), Event(event), 0); }
int Elapsed(float* milliseconds, void* begin, void* end) {
  return cudaEventElapsedTime(milliseconds, Event(begin), Event(end));
}

int Copy(void* target, const void* source, std::size_t bytes, void* stream) {
  return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, Stream(stream));
}
int CopyRows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
             std::size_t width, std::size_t rows, void* stream) {
  return cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, rows, cudaMemcpyDefault,
                           Stream(stream));
}
int Fill(void* target, int byte, std::size_t bytes, void* stream) {
  return cudaMemsetAsync(target, byte, bytes, Stream(stream));
}

constexpr int kPutThreads = 224;
struct PutWords {
  uint4 words[kPutThreads];  // 3584 bytes: arguments of a kernel are at most 4 KiB
};

// One block; thread i writes 16 bytes. Reads nothing but its arguments.
__global__ void __launch_bounds__(kPutThreads)
    PutKernel(const __grid_constant__ PutWords from, uint4* target, int count) {
  if (static_cast<int>(threadIdx.x) < count) {
    target[threadIdx.x] = from.words[threadIdx.x];
  }
}

int Put(void* target, const void* data, std::size_t bytes, void* stream) {
  const auto* from = static_cast<const char*>(data);
  auto* to = static_cast<uint4*>(target);
  for (std::size_t at = 0; at < bytes; at += sizeof(PutWords)) {
    PutWords part;
    const std::size_t some = bytes - at < sizeof(part) ? bytes - at : sizeof(part);
    std::memcpy(&part, from + at, some);
    const auto count = static_cast<int>((some + sizeof(uint4) - 1) / sizeof(uint4));
    PutKernel<<<1, kPutThreads, 0, Stream(stream)>>>(part, to + at / sizeof(uint4), count);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

// One block of one thread. Reads 4 bytes of host memory over the link about once a microsecond. No barrier:
// nobody else works.
__global__ void WaitForWord(const volatile std::uint32_t* word, std::uint32_t value) {
  while (static_cast<std::int32_t>(*word - value) < 0) {
    __nanosleep(500);
  }
  __threadfence_system();
}

using WaitValueFunction = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);

// The driver's stream memory operation, or nullptr. Asked for once.
WaitValueFunction FindWaitValue() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<WaitValueFunction>(found);
}

int WaitValue(void* stream, void* word, std::uint32_t value) {
  static const WaitValueFunction wait = FindWaitValue();
  if (wait != nullptr) {
    const CUresult result =
        wait(Stream(stream), reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_SUCCESS) {
      return cudaSuccess;
    }
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
      return cudaErrorUnknown;
    }
  }
  WaitForWord<<<1, 1, 0, Stream(stream)>>>(static_cast<const volatile std::uint32_t*>(word), value);
  return cudaGetLastError();
}

// Relaxed: what other threads do meanwhile is theirs.
int BeginCapture(void* stream) {
  return cudaStreamBeginCapture(Stream(stream), cudaStreamCaptureModeRelaxed);
}

int EndCapture(void* stream, void** graph) {
  *graph = nullptr;
  cudaGraph_t captured = nullptr;
  if (const cudaError_t error = cudaStreamEndCapture(Stream(stream), &captured); error != cudaSuccess) {
    return error;
  }
  cudaGraphExec_t executable = nullptr;
  cudaError_t error = cudaGraphInstantiate(&executable, captured, 0);
  cudaGraphDestroy(captured);
  if (error == cudaSuccess) {
    error = cudaGraphUpload(executable, Stream(stream));
  }
  if (error != cudaSuccess && executable != nullptr) {
    cudaGraphExecDestroy(executable);
    return error;
  }
  *graph = executable;
  return error;
}

int RunGraph(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Stream(stream));
}
int DestroyGraph(void* graph) { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

void PushRange(const char* name) { nvtxRangePushA(name); }
void PopRange() { nvtxRangePop(); }

// After these no call of this process succeeds on the device any more.
int Poisons(int error) {
  switch (static_cast<cudaError_t>(error)) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorCudartUnloading:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorUnknown:  // what drivers say of a device that is gone
      return 1;
    default:
      return 0;
  }
}

constexpr CudaDeviceApi kDevice = {
    .error_name = ErrorName,
    .error_text = ErrorText,
    .take_last_error = TakeLastError,
    .versions = Versions,
    .device_count = DeviceCount,
    .properties = Properties,
    .set_device = SetDevice,
    .memory_info = MemoryInfo,
    .allocate = Allocate,
    .release = Release,
    .allocate_pinned = AllocatePinned,
    .release_pinned = ReleasePinned,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .query_stream = QueryStream,
    .synchronize_stream = SynchronizeStream,
    .create_event = CreateEvent,
    .destroy_event = DestroyEvent,
    .record_event = RecordEvent,
    .query_event = QueryEvent,
    .synchronize_event = SynchronizeEvent,
    .wait_event = WaitEvent,
    .elapsed = Elapsed,
    .copy = Copy,
    .copy_rows = CopyRows,
    .fill = Fill,
    .put = Put,
    .wait_value = WaitValue,
    .begin_capture = BeginCapture,
    .end_capture = EndCapture,
    .run_graph = RunGraph,
    .destroy_graph = DestroyGraph,
    .push_range = PushRange,
    .pop_range = PopRange,
    .poisons = Poisons,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const CudaPlugin* comoe_cuda_plugin() {
  static const CudaPlugin plugin = {
      .abi = kCudaPluginAbi,
      .size = sizeof(CudaPlugin),
      .device_size = sizeof(CudaDeviceApi),
      .device = &kDevice,
      .kernels = comoe_cuda_kernels(),
      .build = "CUDA " COMOE_CUDA_TOOLKIT ", architectures " COMOE_CUDA_ARCHITECTURES,
  };
  return &plugin;
}

}  // namespace comoe::device
