// The boundary between the program and its CUDA plugin, libcomoe_cuda.so: plain C types only, so that the
// program links no CUDA and starts where none is installed. Includes no CUDA header: host code works through
// these tables.
//
// Every function that can fail returns a cudaError_t as int, 0 when all is well. Streams and events are
// opaque pointers (cudaStream_t, cudaEvent_t). Functions act on the calling thread's current device: call
// set_device once on each thread. None prints, throws or exits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comoe::device {

extern "C" {

struct CudaProperties {
  char name[256];
  std::int32_t compute_major;
  std::int32_t compute_minor;
  std::int32_t multiprocessors;
  std::int32_t pci_domain;
  std::int32_t pci_bus;
  std::int32_t pci_device;
  std::int32_t copy_engines;
  std::int32_t can_map_host_memory;
  std::int32_t integrated;  // memory is the host's
  std::uint64_t total_bytes;
  std::uint64_t l2_bytes;
};

struct CudaDeviceApi {
  // What went wrong, as CUDA says it: "cudaErrorMemoryAllocation", "out of memory". Never nullptr.
  const char* (*error_name)(int error);
  const char* (*error_text)(int error);
  // The last error of the calling thread, which is forgotten. One that poisoned the context stays.
  int (*take_last_error)();

  // The driver's and this plugin's CUDA, as 1000 major + 10 minor; the driver's is 0 where there is none.
  int (*versions)(int* driver, int* runtime);
  int (*device_count)(int* count);
  int (*properties)(int ordinal, CudaProperties* properties);
  int (*set_device)(int ordinal);
  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);

  int (*allocate)(void** data, std::size_t bytes);
  int (*release)(void* data);  // waits for the device
  // Page-locked, portable, mapped: `*on_device` is where kernels see it.
  int (*allocate_pinned)(void** data, void** on_device, std::size_t bytes);
  int (*release_pinned)(void* data);

  // Non-blocking towards the default stream. `high_priority` 0 or 1.
  int (*create_stream)(void** stream, int high_priority);
  int (*destroy_stream)(void* stream);
  int (*query_stream)(void* stream);  // cudaErrorNotReady: work is left
  int (*synchronize_stream)(void* stream);

  int (*create_event)(void** event, int timing);
  int (*destroy_event)(void* event);
  int (*record_event)(void* event, void* stream);
  int (*query_event)(void* event);  // cudaErrorNotReady: has not happened
  int (*synchronize_event)(void* event);
  int (*wait_event)(void* stream, void* event);  // later work on `stream` waits
  // Milliseconds from one timing event to another; both have happened.
  int (*elapsed)(float* milliseconds, void* begin, void* end);

  // In any direction, from the addresses.
  int (*copy)(void* target, const void* source, std::size_t bytes, void* stream);
  // `rows` rows of `width` bytes, `target_pitch` and `source_pitch` bytes apart.
  int (*copy_rows)(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                   std::size_t width, std::size_t rows, void* stream);
  int (*fill)(void* target, int byte, std::size_t bytes, void* stream);

  // Writes `bytes` bytes, which are read during the call, to device memory at `target` (16-byte aligned; up
  // to 15 bytes after them are written too): they travel with the launch of a small kernel, a few KiB each,
  // and not by a copy that would queue behind others.
  int (*put)(void* target, const void* data, std::size_t bytes, void* stream);

  // Later work on `stream` waits until the word that kernels see at `word` has reached `value`, counting
  // round: (int32)(*word - value) >= 0. The host writes the word. By a stream memory operation, or where the
  // device has none, by a kernel of one thread.
  int (*wait_value)(void* stream, void* word, std::uint32_t value);

  // What the calling thread queues on `stream` is kept and not run, until end_capture makes an executable
  // graph of it: to be destroyed, once it has run. An error: there is none.
  int (*begin_capture)(void* stream);
  int (*end_capture)(void* stream, void** graph);
  int (*run_graph)(void* graph, void* stream);
  int (*destroy_graph)(void* graph);

  // Named ranges in a profiler's timeline, nested on the calling thread; nothing without a profiler.
  void (*push_range)(const char* name);
  void (*pop_range)();
  // Whether `error` leaves the process's context unusable for good.
  int (*poisons)(int error);
};

struct CudaPlugin {
  std::uint32_t abi;          // kCudaPluginAbi
  std::uint32_t size;         // sizeof(CudaPlugin), and with it that of its tables
  std::uint32_t device_size;  // sizeof(CudaDeviceApi)
  const CudaDeviceApi* device;
  // The launch table of engine/kernels/cuda/cuda_launch.h, with an ABI number of its own; nullptr when the
  // plugin was built without kernels.
  const void* kernels;
  const char* build;  // for people: CUDA version and architectures
};

// The one symbol that the plugin exports: `const CudaPlugin* comoe_cuda_plugin()`.
using CudaPluginEntry = const CudaPlugin* (*)();

}  // extern "C"

// Rises with every change of a struct above.
inline constexpr std::uint32_t kCudaPluginAbi = 3;
inline constexpr const char* kCudaPluginSymbol = "comoe_cuda_plugin";
inline constexpr const char* kCudaPluginFile = "libcomoe_cuda.so";
inline constexpr int kCudaNotReady = 600;  // cudaErrorNotReady

}  // namespace comoe::device

// Defined by the kernels' part of the plugin (engine/kernels/cuda/*.cu): their launch table.
extern "C" const void* comoe_cuda_kernels();
