// Moves blobs between tiers on streams of its own, and holds back what is only a guess.
//
// Certain copies go to their stream at once, so that the event that ends them is known at once. Guesses wait
// in a queue, in the order in which they were given, and only a few are on the link at a time: a link works
// in order, and a certain copy must not queue behind many guesses. What ends is told to the Client, who owns
// slots and decides what a guess needs (TieredExpertCache).
//
// Threads: everything here, and everything the client keeps, is used within a Scope, which one thread holds
// at a time. An event's notification may come on any thread, or from within a call that the holder makes on
// the device; it is only noted then, and handled by the holder when its scope ends, or at once when there is
// none. So nothing here is called under a lock, and the device may call back whenever it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/offload.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "engine/base/sync.h"
#include "engine/device/device.h"
#include "engine/experts/packed_file.h"

namespace comoe::experts {

// The streams: "copy-demand", "copy-prefetch", "copy-evict" over the link, "stage" within the host.
enum class Lane : std::uint8_t { kDemand, kGuess, kEvict, kStage };
inline constexpr std::size_t kNumLanes = 4;

inline constexpr std::int32_t kNone = -1;

// One blob's way from one place to another. Numbers of experts, places and guesses are the client's.
struct Copy {
  enum class Purpose : std::uint8_t {
    kDevice,   // to the device
    kStage,    // to page-locked memory, on its way to the device or to be read there
    kPromote,  // to page-locked memory, to stay
    kEvict,    // from the device, to stay
    kDemote    // from page-locked memory to the host tier
  };
  Purpose purpose = Purpose::kDevice;
  Lane lane = Lane::kDemand;
  base::CopyDirection direction = base::CopyDirection::kHostToDevice;
  base::CopyReason reason = base::CopyReason::kDemand;
  base::ExpertKey key;
  std::int32_t expert = kNone;
  std::int32_t source_place = kNone;
  std::int32_t target_place = kNone;
  std::int32_t guess = kNone;
  std::byte* target = nullptr;
  const std::byte* source = nullptr;  // nullptr: read from `file`
  const PackedFile* file = nullptr;
  bool pageable = false;  // its host end is not page-locked, and it crosses the link
  bool transient = false;

  // Set while it is under way.
  bool used = false;           // somebody already waits for it
  bool source_failed = false;  // what it copies never arrived
};

// A copy that may not be needed.
struct Guess {
  enum class State : std::uint8_t { kFree, kQueued, kStaging, kStaged, kOnLink };
  State state = State::kFree;
  std::int32_t expert = kNone;
  base::Tier tier = base::Tier::kDevice;  // or kPinned
  std::int32_t slot = kNone;
  base::CopyReason reason = base::CopyReason::kPrefetch;
  std::int32_t layer = 0;
  std::int64_t sweep = 0;             // too late once its layer has passed in this walk over the layers
  std::int32_t staged_place = kNone;  // kStaging, kStaged
  bool cancelled = false;             // kStaging: not wanted any more
};

struct TransferOptions {
  int max_guesses_in_flight = 1;  // >= 1
  // >= 1. Of guesses in flight; at least one blob goes whatever its size.
  std::uint64_t max_guess_bytes_in_flight = std::uint64_t{64} << 20;
  int max_promotions_in_flight = 1;  // into page-locked memory
  int queue_capacity = 512;          // guesses
  // Until copies of the engine's own were measured. `initial_rates_measured`: link and host were measured
  // before.
  double initial_link_bytes_per_second = 12e9;
  double initial_host_bytes_per_second = 8e9;
  double initial_disk_bytes_per_second = 2e9;
  bool initial_rates_measured = false;
  // A copy that takes longer counts as never ending.
  absl::Duration copy_limit = absl::Seconds(10);
};

class TransferEngine final : private device::EventListener {
 public:
  enum class Start : std::uint8_t {
    kStarted,
    kLater,   // nothing is free for it
    kDropped  // it is pointless
  };
  // Called within a scope.
  class Client {
   public:
    virtual ~Client() = default;
    // The copy ended; `hung`: it has not, and is given up: its target may still be written.
    virtual void OnCopied(std::int32_t id, const Copy& copy, const absl::Status& status, bool hung) = 0;
    // Starts a queued guess, or goes on with one that is staged.
    virtual Start StartGuess(std::int32_t guess) = 0;
    // Before a scope ends.
    virtual void Settle() = 0;
  };

  // Device and client outlive it. Every blob has `blob_bytes`.
  static absl::StatusOr<std::unique_ptr<TransferEngine>> Create(device::Device& device,
                                                                std::size_t blob_bytes,
                                                                const TransferOptions& options,
                                                                Client& client);
  ~TransferEngine() override;

  // The end, if it has not come yet: waits for the copies under way, copy_limit each at most. Nothing is
  // queued afterwards. Whether all copies have ended: otherwise some may touch their memory for ever.
  bool Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // For who opens scopes where copies hold up whoever queues them: the compute stream that thread queues work
  // on, which is to hear of it. nullptr: none.
  void UseStream(device::Stream* stream) ABSL_LOCKS_EXCLUDED(mutex_);

  // Exclusive use; what was notified meanwhile is handled, and guesses are started, when it ends. Blocks
  // while another thread holds one: never for long, unless that queues a pageable copy. Not reentrant.
  class Scope {
   public:
    explicit Scope(TransferEngine& engine) : engine_(engine) { engine_.Enter(); }
    ~Scope() { engine_.Leave(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    TransferEngine& engine_;
  };

  struct After {
    const device::Event* event = nullptr;
    base::WaitEdge edge = base::WaitEdge::kSlotFree;
    bool must_succeed = false;  // the copy reads, or overwrites, what comes of it
  };
  struct Submitted {
    std::int32_t id = kNone;
    device::Event done;
  };
  // Queues a copy after `after`. Does not block, but for a pageable one. An error: it was not queued, or what
  // it needs has failed.
  absl::StatusOr<Submitted> Submit(const Copy& copy, absl::Span<const After> after);
  // Copies under way only.
  Copy& copy(std::int32_t id) { return records_[static_cast<std::size_t>(id)]->copy; }
  // Handles the end of a copy whose event has happened before its notification came.
  void Finish(std::int32_t id);
  // The end of the copy that has been under way for longest. Where some have ended since this was last asked,
  // also between a refusal and this question, the event has happened. nullopt: neither.
  std::optional<device::Event> Oldest();
  // Gives up a copy that does not end.
  void GiveUp(std::int32_t id) { End(id, absl::DeadlineExceededError("a copy has not ended"), true); }
  // Visits all copies under way.
  template <typename Visit>
  void ForEachUnderWay(Visit visit) {
    for (const std::unique_ptr<Record>& record : records_) {
      if (record->state == Record::State::kUnderWay) {
        visit(record->copy);
      }
    }
  }
  // Gives up all that take longer than the limit, except where `keep` says that somebody else watches. The
  // time that a copy waits for its source, and for those before it in its lane as long as any of them ends,
  // does not count.
  template <typename Keep>
  void GiveUpHung(Keep keep) {
    const double now = device_.Now();
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Record& record = *records_[i];
      if (record.state == Record::State::kUnderWay && now - record.since > limit_seconds_ &&
          record.source.Done() && !record.done.Done() && !keep(record.copy)) {
        GiveUp(static_cast<std::int32_t>(i));
      }
    }
  }

  // kNone: the queue is full.
  std::int32_t Enqueue(const Guess& guess);
  Guess& guess(std::int32_t id) { return guesses_[static_cast<std::size_t>(id)]; }
  // Takes a guess out, whatever its state; `cancelled`: it was not wanted any more.
  void Remove(std::int32_t id, bool cancelled);
  // Waiting, most urgent first; valid until the queue changes.
  absl::Span<const std::int32_t> waiting() const { return order_; }
  // Staged, or on their way; valid until one ends.
  absl::Span<const std::int32_t> active() const { return active_; }

  // Alone; measured, or given until it is.
  double seconds_per_blob(base::CopyDirection direction) const { return seconds_per_blob_[direction]; }
  bool measured(base::CopyDirection direction) const { return measured_[direction]; }
  // Until the copies to the device that are under way have ended.
  double link_queue_seconds() const;
  std::int32_t queued_guesses() const { return static_cast<std::int32_t>(order_.size()); }
  std::int32_t copies_under_way() const { return under_way_; }
  // Copies that ended since the last call, at most kMaxSamples; valid until the next call.
  absl::Span<const api::CopySample> TakeSamples();
  // Copies, failures, cancelled guesses.
  void AddTotals(api::OffloadTotals& totals) const;

 private:
  static constexpr std::size_t kMaxSamples = 4096;

  struct DiskRead final : device::Stream::HostWork {
    absl::Status Run(device::Stream& stream) override;
    const PackedFile* file = nullptr;
    base::ExpertKey key;
    std::byte* target = nullptr;
  };
  struct Record {
    enum class State : std::uint8_t { kFree, kUnderWay, kGivenUp };
    State state = State::kFree;
    std::uint32_t generation = 0;  // tells a late notification of an earlier copy
    Copy copy;
    DiskRead read;
    device::Event begin;   // when its target was free...
    device::Event source;  // ...and its source there
    device::Event done;
    double submitted = 0.0;
    double since = 0.0;  // the copy before it in its lane, or its source, ended then, as far as is known
  };
  struct LaneState {
    std::unique_ptr<device::Stream> stream;
    std::int32_t under_way = 0;
  };

  TransferEngine(device::Device& device, std::size_t blob_bytes, const TransferOptions& options,
                 Client& client);
  void Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  bool TryEnter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEvent(std::uint64_t tag) override ABSL_LOCKS_EXCLUDED(mutex_);
  // The holder's last act: until nothing more has been notified.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump();
  bool MayStart(const Guess& guess) const;

  std::int32_t TakeRecord();
  absl::Status Queue(Record& record, absl::Span<const After> after);
  // Who is held up when such a copy is queued.
  device::Stream* HeldUpBy(const Copy& copy) const { return copy.pageable && by_owner_ ? stream_ : nullptr; }
  void End(std::int32_t id, const absl::Status& status, bool hung);
  // Of copies that may begin now that this one has ended: their limit counts from here.
  void StartClocks(const Record& ended, bool hung);
  void Measure(const Record& record);
  void Handle(std::uint64_t tag);
  LaneState& lane(Lane which) { return lanes_[static_cast<std::size_t>(which)]; }

  device::Device& device_;
  const std::size_t blob_bytes_;
  const TransferOptions options_;
  const double limit_seconds_;
  Client& client_;

  // The scope, and what was notified while somebody held it.
  mutable base::Mutex mutex_;
  base::CondVar free_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::uint64_t> notified_ ABSL_GUARDED_BY(mutex_);
  std::int32_t awaited_ ABSL_GUARDED_BY(mutex_) = 0;  // notifications that are still to come

  // All below: within a scope.
  device::Stream* stream_ = nullptr;  // written by who opens scopes, which may read it at any time
  bool by_owner_ = false;             // the scope was opened; else its holder was notified
  std::vector<LaneState> lanes_;
  std::vector<std::unique_ptr<Record>> records_;
  std::vector<std::int32_t> free_records_;
  std::vector<std::uint64_t> handling_;
  std::vector<Guess> guesses_;
  std::vector<std::int32_t> free_guesses_;
  std::vector<std::int32_t> order_;   // queued ones, most urgent first
  std::vector<std::int32_t> active_;  // those that left the queue and have not ended
  std::int32_t guesses_in_flight_ = 0;
  std::int32_t promotions_in_flight_ = 0;
  std::int32_t under_way_ = 0;
  bool ended_ = false;  // some have since Oldest was last asked
  bool stopping_ = false;
  std::optional<bool> stopped_;  // what Stop found
  bool warned_unpinned_ = false;

  base::PerKind<double, base::kNumCopyDirections> seconds_per_blob_;
  base::PerKind<bool, base::kNumCopyDirections> measured_;
  base::PerKind<double, base::kNumCopyDirections> last_end_;
  double link_free_at_ = 0.0;
  base::PerKind<api::CopyTotals, base::kNumCopyDirections> totals_;
  std::vector<api::CopySample> samples_;  // up to kMaxSamples
  std::vector<api::CopySample> handed_out_;
  std::uint64_t failed_copies_ = 0;
  std::uint64_t cancelled_guesses_ = 0;
  std::uint64_t unpinned_copies_ = 0;
};

}  // namespace comoe::experts
