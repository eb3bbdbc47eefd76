#include "tests/support/fake_cuda.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace comoe::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kArenaBytes = std::size_t{8} << 30;  // of addresses; pages come at first touch
constexpr std::size_t kAlignment = 4096;                   // whole pages
constexpr int kIllegalAddress = 700;
constexpr int kOutOfMemory = 2;
constexpr int kCapturing = 900;  // cudaErrorStreamCaptureUnsupported

std::atomic<int> g_error{0};
std::atomic<std::size_t> g_allocations{0};
std::atomic<std::size_t> g_waits{0};
std::atomic<std::size_t> g_graphs_run{0};
std::atomic<std::size_t> g_bytes_to_host{0};
std::atomic<double> g_bytes_per_second{0.0};

// What is page-locked.
class PinnedRanges {
 public:
  void Add(void* data, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_[static_cast<const std::byte*>(data)] = bytes;
  }
  void Remove(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.erase(static_cast<const std::byte*>(data));
  }
  bool Has(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(data);
    const auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin()) {
      return false;
    }
    const auto& [begin, bytes] = *std::prev(after);
    return at < begin + bytes;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_;
};

PinnedRanges& ThePinned() {
  static PinnedRanges& ranges = *new PinnedRanges();
  return ranges;
}

std::mutex g_names_mutex;
std::vector<std::string> g_names;

void PushRange(const char* name) {
  const std::lock_guard<std::mutex> lock(g_names_mutex);
  g_names.emplace_back(name);
}
void PopRange() {
  const std::lock_guard<std::mutex> lock(g_names_mutex);
  g_names.emplace_back();
}

// Device memory.
class Arena {
 public:
  Arena() {
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (data_ == MAP_FAILED) {
      std::abort();
    }
  }
  void* Take(std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ + rounded > kArenaBytes) {
      return nullptr;
    }
    std::byte* const data = data_ + std::exchange(used_, used_ + rounded);
    sizes_[data] = rounded;
    return data;
  }
  // Its addresses are not used again; its pages are, which keeps Open and Close fast.
  void GiveBack(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(data);
    if (found != sizes_.end()) {
      ::madvise(found->first, found->second, MADV_DONTNEED);
      sizes_.erase(found);
    }
  }
  bool Has(const void* data) const {
    const auto* const at = static_cast<const std::byte*>(data);
    return at >= data_ && at < data_ + kArenaBytes;
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_++ == 0) {
      ::mprotect(data_, kArenaBytes, PROT_READ | PROT_WRITE);
    }
  }
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--open_ == 0) {
      ::mprotect(data_, kArenaBytes, PROT_NONE);
    }
  }

 private:
  std::byte* data_ = nullptr;
  std::mutex mutex_;
  std::size_t used_ = 0;
  std::map<void*, std::size_t> sizes_;
  int open_ = 0;
};

Arena& TheArena() {
  static Arena& arena = *new Arena();
  return arena;
}

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) {}
  ~FakeStream() {
    Synchronize();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Push(std::function<void()> work) {
    if (capturing_) {
      kept_.push_back(std::move(work));
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
      ++queued_;
    }
    changed_.notify_all();
  }
  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&, until = queued_] { return done_ >= until; });
  }
  // By the thread that queues.
  bool capturing() const { return capturing_; }
  void BeginCapture() { capturing_ = true; }
  std::vector<std::function<void()>> EndCapture() {
    capturing_ = false;
    return std::exchange(kept_, {});
  }
  bool Idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ == queued_;
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t queued_ = 0;
  std::uint64_t done_ = 0;
  bool stop_ = false;
  bool capturing_ = false;
  std::vector<std::function<void()>> kept_;
  std::thread thread_;
};

using FakeGraph = std::vector<std::function<void()>>;

struct FakeEvent {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t done = 0;
  Clock::time_point time;
};

FakeStream& StreamOf(void* stream) { return *static_cast<FakeStream*>(stream); }
FakeEvent& EventOf(void* event) { return *static_cast<FakeEvent*>(event); }

void AwaitEvent(FakeEvent& event, std::uint64_t generation) {
  std::unique_lock<std::mutex> lock(event.mutex);
  event.changed.wait(lock, [&] { return event.done >= generation; });
}

int Error() { return g_error.load(); }

int Versions(int* driver, int* runtime) {
  *driver = *runtime = 13000;
  return Error();
}
int DeviceCount(int* count) {
  *count = 1;
  return Error();
}
int Properties(int /*ordinal*/, device::CudaProperties* properties) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "a fake for tests");
  properties->compute_major = 9;
  properties->multiprocessors = 1;
  properties->total_bytes = kArenaBytes;
  return Error();
}
int MemoryInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = kArenaBytes;
  return Error();
}
int Allocate(void** data, std::size_t bytes) {
  ++g_allocations;
  *data = TheArena().Take(bytes);
  return *data == nullptr ? kOutOfMemory : Error();
}
int Release(void* data) {
  ++g_allocations;
  TheArena().GiveBack(data);
  return 0;
}
int AllocatePinned(void** data, void** on_device, std::size_t bytes) {
  ++g_allocations;
  *data = *on_device = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  ThePinned().Add(*data, bytes);
  return *data == nullptr ? kOutOfMemory : Error();
}
int ReleasePinned(void* data) {
  ++g_allocations;
  ThePinned().Remove(data);
  std::free(data);
  return 0;
}
int CreateStream(void** stream, int /*high_priority*/) {
  *stream = new FakeStream();
  return Error();
}
int DestroyStream(void* stream) {
  delete &StreamOf(stream);
  return 0;
}
int QueryStream(void* stream) {
  return Error() != 0 ? Error() : StreamOf(stream).Idle() ? 0 : device::kCudaNotReady;
}
int SynchronizeStream(void* stream) {
  if (StreamOf(stream).capturing()) {
    return kCapturing;
  }
  ++g_waits;
  StreamOf(stream).Synchronize();
  return Error();
}
int BeginCapture(void* stream) {
  StreamOf(stream).BeginCapture();
  return Error();
}
int EndCapture(void* stream, void** graph) {
  *graph = new FakeGraph(StreamOf(stream).EndCapture());
  return Error();
}
int RunGraph(void* graph, void* stream) {
  ++g_graphs_run;
  StreamOf(stream).Push([graph] {
    for (const std::function<void()>& work : *static_cast<FakeGraph*>(graph)) {
      work();
    }
  });
  return Error();
}
int DestroyGraph(void* graph) {
  delete static_cast<FakeGraph*>(graph);
  return 0;
}
int CreateEvent(void** event, int /*timing*/) {
  *event = new FakeEvent();
  return Error();
}
int DestroyEvent(void* event) {
  delete &EventOf(event);
  return 0;
}
int RecordEvent(void* event, void* stream) {
  if (StreamOf(stream).capturing()) {
    return kCapturing;  // allowed by CUDA, but nobody could wait for it
  }
  FakeEvent& fake = EventOf(event);
  std::uint64_t generation = 0;
  {
    const std::lock_guard<std::mutex> lock(fake.mutex);
    generation = ++fake.recorded;
  }
  StreamOf(stream).Push([&fake, generation] {
    const std::lock_guard<std::mutex> lock(fake.mutex);
    fake.done = generation;
    fake.time = Clock::now();
    fake.changed.notify_all();
  });
  return Error();
}
int QueryEvent(void* event) {
  FakeEvent& fake = EventOf(event);
  const std::lock_guard<std::mutex> lock(fake.mutex);
  return Error() != 0 ? Error() : fake.done == fake.recorded ? 0 : device::kCudaNotReady;
}
int SynchronizeEvent(void* event) {
  ++g_waits;
  FakeEvent& fake = EventOf(event);
  AwaitEvent(fake, fake.recorded);
  return Error();
}
int WaitEvent(void* stream, void* event) {
  FakeEvent& fake = EventOf(event);
  std::uint64_t generation = 0;
  {
    const std::lock_guard<std::mutex> lock(fake.mutex);
    generation = fake.recorded;
  }
  StreamOf(stream).Push([&fake, generation] { AwaitEvent(fake, generation); });
  return Error();
}
int Elapsed(float* milliseconds, void* begin, void* end) {
  *milliseconds = std::chrono::duration<float, std::milli>(EventOf(end).time - EventOf(begin).time).count();
  return Error();
}
int Copy(void* target, const void* source, std::size_t bytes, void* stream) {
  if (TheArena().Has(source) && !TheArena().Has(target)) {
    g_bytes_to_host += bytes;
  }
  const double rate = TheArena().Has(source) != TheArena().Has(target) ? g_bytes_per_second.load() : 0.0;
  StreamOf(stream).Push([=] {
    {
      const DeviceAccess access;
      std::memcpy(target, source, bytes);
    }
    if (rate > 0.0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / rate));
    }
  });
  if (rate > 0.0 && !ThePinned().Has(TheArena().Has(source) ? target : source)) {
    StreamOf(stream).Synchronize();
  }
  return Error();
}
int CopyRows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
             std::size_t width, std::size_t rows, void* stream) {
  StreamOf(stream).Push([=] {
    const DeviceAccess access;
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(target) + row * target_pitch,
                  static_cast<const std::byte*>(source) + row * source_pitch, width);
    }
  });
  return Error();
}
int Fill(void* target, int byte, std::size_t bytes, void* stream) {
  StreamOf(stream).Push([=] {
    const DeviceAccess access;
    std::memset(target, byte, bytes);
  });
  return Error();
}
int Put(void* target, const void* data, std::size_t bytes, void* stream) {
  const auto* from = static_cast<const std::byte*>(data);
  StreamOf(stream).Push([target, copy = std::vector<std::byte>(from, from + bytes)] {
    const DeviceAccess access;
    std::memcpy(target, copy.data(), copy.size());
  });
  return Error();
}
int WaitValue(void* stream, void* word, std::uint32_t value) {
  StreamOf(stream).Push([=] {
    const auto* at = static_cast<const std::uint32_t*>(word);
    while (static_cast<std::int32_t>(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::yield();
    }
  });
  return Error();
}

const device::CudaDeviceApi kApi = {
    .error_name =
        [](int error) { return error == kOutOfMemory ? "cudaErrorMemoryAllocation" : "cudaErrorFake"; },
    .error_text =
        [](int error) { return error == kIllegalAddress ? "an illegal address" : "what the test asked for"; },
    .take_last_error = [] { return 0; },
    .versions = Versions,
    .device_count = DeviceCount,
    .properties = Properties,
    .set_device = [](int) { return Error(); },
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
    .poisons = [](int error) { return error == kIllegalAddress ? 1 : 0; },
};

}  // namespace

const device::CudaPlugin& FakeCudaPlugin() {
  static const device::CudaPlugin plugin = {.abi = device::kCudaPluginAbi,
                                            .size = sizeof(device::CudaPlugin),
                                            .device_size = sizeof(device::CudaDeviceApi),
                                            .device = &kApi,
                                            .kernels = nullptr,
                                            .build = "fake"};
  return plugin;
}

DeviceAccess::DeviceAccess() { TheArena().Open(); }
DeviceAccess::~DeviceAccess() { TheArena().Close(); }

void FakeLaunch(void* stream, std::function<void()> work) {
  StreamOf(stream).Push([work = std::move(work)] {
    const DeviceAccess access;
    work();
  });
}

bool FakeCapturing(void* stream) { return StreamOf(stream).capturing(); }
std::size_t FakeCudaGraphsRun() { return g_graphs_run.load(); }
int FakeJoin(void* stream) {
  StreamOf(stream).Synchronize();
  return Error();
}
std::size_t FakeCudaWaits() { return g_waits.load(); }

void FailFakeCuda(int error) { g_error.store(error); }
void PaceFakeCuda(double bytes_per_second) { g_bytes_per_second.store(bytes_per_second); }
std::vector<std::string> TakeFakeCudaRanges() {
  const std::lock_guard<std::mutex> lock(g_names_mutex);
  return std::exchange(g_names, {});
}
std::size_t FakeCudaAllocations() { return g_allocations.load(); }
std::size_t FakeCudaBytesToHost() { return g_bytes_to_host.load(); }

}  // namespace comoe::testing
