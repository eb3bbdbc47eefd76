#include "engine/experts/transfer_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace comoe::experts {
namespace {

constexpr std::array<absl::string_view, kNumLanes> kLaneNames = {"copy-demand", "copy-prefetch", "copy-evict",
                                                                 "stage"};
constexpr int kGenerationShift = 32;
// Weight of a new measurement: about the last ten count.
constexpr double kNewest = 0.1;
// How long notifications of events that have happened may take at the end.
constexpr absl::Duration kLastNotification = absl::Seconds(1);

double SecondsOf(const device::Event& event) {
  return event.state() == nullptr ? std::numeric_limits<double>::quiet_NaN() : event.state()->Seconds();
}

// What waits for a copy of that lane waits along.
base::WaitEdge EdgeOf(Lane lane) {
  switch (lane) {
    case Lane::kGuess:
      return base::WaitEdge::kPrefetchCopy;
    case Lane::kEvict:
      return base::WaitEdge::kSlotFree;
    case Lane::kDemand:
    case Lane::kStage:
      break;
  }
  return base::WaitEdge::kDemandCopy;
}

}  // namespace

absl::Status TransferEngine::DiskRead::Run(device::Stream& stream) {
  stream.CountDiskRead(file->read_bytes());
  return file->Read(key, target);
}

absl::StatusOr<std::unique_ptr<TransferEngine>> TransferEngine::Create(device::Device& device,
                                                                       std::size_t blob_bytes,
                                                                       const TransferOptions& options,
                                                                       Client& client) {
  if (options.max_guesses_in_flight < 1 || options.max_promotions_in_flight < 1 ||
      options.queue_capacity < 1 || !(options.initial_link_bytes_per_second > 0.0) ||
      !(options.initial_host_bytes_per_second > 0.0) || !(options.initial_disk_bytes_per_second > 0.0) ||
      options.copy_limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("transfers: every limit, rate and capacity must be above 0");
  }
  std::unique_ptr<TransferEngine> engine(new TransferEngine(device, blob_bytes, options, client));
  for (std::size_t i = 0; i < kNumLanes; ++i) {
    const bool host = static_cast<Lane>(i) == Lane::kStage;
    COMOE_ASSIGN_OR_RETURN(
        engine->lanes_[i].stream,
        device.CreateStream(kLaneNames[i], host ? device::StreamKind::kHost : device::StreamKind::kCopy));
  }
  return engine;
}

TransferEngine::TransferEngine(device::Device& device, std::size_t blob_bytes, const TransferOptions& options,
                               Client& client)
    : device_(device),
      blob_bytes_(blob_bytes),
      options_(options),
      limit_seconds_(absl::ToDoubleSeconds(options.copy_limit)),
      client_(client),
      lanes_(kNumLanes) {
  samples_.reserve(kMaxSamples);
  handed_out_.reserve(kMaxSamples);
  const auto capacity = static_cast<std::size_t>(options.queue_capacity);
  guesses_.resize(capacity);
  free_guesses_.reserve(capacity);
  for (std::size_t i = capacity; i-- > 0;) {
    free_guesses_.push_back(static_cast<std::int32_t>(i));
  }
  order_.reserve(capacity);
  active_.reserve(capacity);
  constexpr std::size_t kUsualCopies = 64;  // under way at a time; more are possible, and allocate
  records_.reserve(kUsualCopies);
  free_records_.reserve(kUsualCopies);
  handling_.reserve(kUsualCopies);
  notified_.reserve(kUsualCopies);
  for (std::size_t i = 0; i < kUsualCopies; ++i) {
    records_.push_back(std::make_unique<Record>());
    free_records_.push_back(static_cast<std::int32_t>(i));
  }
  const auto blob = static_cast<double>(blob_bytes);
  seconds_per_blob_[base::CopyDirection::kHostToDevice] = blob / options.initial_link_bytes_per_second;
  seconds_per_blob_[base::CopyDirection::kDeviceToHost] = blob / options.initial_link_bytes_per_second;
  seconds_per_blob_[base::CopyDirection::kHostToHost] = blob / options.initial_host_bytes_per_second;
  seconds_per_blob_[base::CopyDirection::kDiskToHost] = blob / options.initial_disk_bytes_per_second;
  measured_[base::CopyDirection::kHostToDevice] = measured_[base::CopyDirection::kDeviceToHost] =
      measured_[base::CopyDirection::kHostToHost] = options.initial_rates_measured;
}

TransferEngine::~TransferEngine() {
  Stop();
  // What did not end in Stop's time may still: its stream waits for it, and until then its records stay, and
  // so does who is told.
  for (LaneState& lane : lanes_) {
    lane.stream.reset();
  }
  Enter();
  std::int32_t never = 0;
  for (const std::unique_ptr<Record>& record : records_) {
    never += record->state != Record::State::kFree && !record->done.Done() ? 1 : 0;
  }
  Leave();
  base::MutexLock lock(&mutex_);
  while (held_ || awaited_ > never) {
    free_.Wait(&mutex_);
  }
}

bool TransferEngine::Stop() {
  if (stopped_.has_value()) {
    return *stopped_;
  }
  Enter();
  stopping_ = true;
  std::vector<device::Event> under_way;
  std::int32_t never = 0;
  for (const std::unique_ptr<Record>& record : records_) {
    if (record->state == Record::State::kUnderWay) {
      under_way.push_back(record->done);
    }
    never += record->state == Record::State::kGivenUp ? 1 : 0;
  }
  Leave();
  for (const device::Event& event : under_way) {
    never += absl::IsDeadlineExceeded(event.Synchronize(options_.copy_limit)) ? 1 : 0;
  }
  stopped_ = never == 0;
  base::MutexLock lock(&mutex_);
  while (held_ || awaited_ > never) {
    if (free_.WaitWithTimeout(&mutex_, kLastNotification)) {
      base::Log(base::LogLevel::kError, "experts", "copies were not heard of again before the end");
      stopped_ = false;
      break;
    }
  }
  return *stopped_;
}

void TransferEngine::UseStream(device::Stream* stream) {
  const Scope scope(*this);
  stream_ = stream;
}

void TransferEngine::Enter() {
  if (!TryEnter()) {
    // Others queue guesses.
    const device::HoldUp held_up(stream_, base::WaitEdge::kPrefetchCopy);
    base::MutexLock lock(&mutex_);
    while (held_) {
      free_.Wait(&mutex_);
    }
    held_ = true;
  }
  by_owner_ = true;
}

bool TransferEngine::TryEnter() {
  base::MutexLock lock(&mutex_);
  return !std::exchange(held_, true);
}

void TransferEngine::Leave() { Drain(); }

void TransferEngine::OnEvent(std::uint64_t tag) {
  {
    base::MutexLock lock(&mutex_);
    --awaited_;
    notified_.push_back(tag);
    if (held_) {
      return;
    }
    held_ = true;
  }
  // Where time is simulated, whoever lets it pass is notified: the owner.
  by_owner_ = device_.simulated();
  Drain();
}

void TransferEngine::Drain() {
  for (;;) {
    if (!stopping_) {
      Pump();
      client_.Settle();
    }
    {
      base::MutexLock lock(&mutex_);
      if (notified_.empty()) {
        held_ = false;
        free_.SignalAll();
        return;
      }
      std::swap(notified_, handling_);
    }
    for (const std::uint64_t tag : handling_) {
      Handle(tag);
    }
    handling_.clear();
  }
}

void TransferEngine::Handle(std::uint64_t tag) {
  const auto id = static_cast<std::int32_t>(tag & 0xffffffffU);
  Record& record = *records_[static_cast<std::size_t>(id)];
  if (record.generation != static_cast<std::uint32_t>(tag >> kGenerationShift)) {
    return;  // its end was seen before
  }
  if (record.state == Record::State::kGivenUp) {  // it ended after all
    record.state = Record::State::kFree;
    record.done = device::Event();
    ++record.generation;
    free_records_.push_back(id);
    return;
  }
  End(id, record.done.Synchronize(absl::ZeroDuration()), false);
}

bool TransferEngine::MayStart(const Guess& guess) const {
  if (guess.tier == base::Tier::kPinned) {
    return promotions_in_flight_ < options_.max_promotions_in_flight;
  }
  const auto after = static_cast<std::uint64_t>(guesses_in_flight_ + 1) * blob_bytes_;
  return guesses_in_flight_ < options_.max_guesses_in_flight &&
         (guesses_in_flight_ == 0 || after <= options_.max_guess_bytes_in_flight);
}

void TransferEngine::Pump() {
  for (std::size_t i = 0; i < active_.size();) {
    const std::int32_t id = active_[i];
    if (guess(id).state == Guess::State::kStaged && client_.StartGuess(id) == Start::kDropped) {
      Remove(id, false);
    } else {
      ++i;
    }
  }
  for (std::size_t i = 0; i < order_.size();) {
    if (guesses_in_flight_ >= options_.max_guesses_in_flight &&
        promotions_in_flight_ >= options_.max_promotions_in_flight) {
      return;
    }
    const std::int32_t id = order_[i];
    const Guess& next = guess(id);
    const Start start = MayStart(next) ? client_.StartGuess(id) : Start::kLater;
    if (start == Start::kLater) {
      ++i;
      continue;
    }
    if (start == Start::kDropped) {
      Remove(id, false);
      continue;
    }
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(i));
    active_.push_back(id);
    ++(next.tier == base::Tier::kPinned ? promotions_in_flight_ : guesses_in_flight_);
  }
}

std::int32_t TransferEngine::Enqueue(const Guess& guess) {
  if (free_guesses_.empty()) {
    return kNone;
  }
  const std::int32_t id = free_guesses_.back();
  free_guesses_.pop_back();
  guesses_[static_cast<std::size_t>(id)] = guess;
  guesses_[static_cast<std::size_t>(id)].state = Guess::State::kQueued;
  order_.push_back(id);
  return id;
}

void TransferEngine::Remove(std::int32_t id, bool cancelled) {
  Guess& removed = guess(id);
  const bool queued = removed.state == Guess::State::kQueued;
  std::vector<std::int32_t>& list = queued ? order_ : active_;
  list.erase(std::find(list.begin(), list.end(), id));
  if (!queued) {
    --(removed.tier == base::Tier::kPinned ? promotions_in_flight_ : guesses_in_flight_);
  }
  cancelled_guesses_ += cancelled ? 1 : 0;
  removed = Guess();
  free_guesses_.push_back(id);
}

std::int32_t TransferEngine::TakeRecord() {
  if (free_records_.empty()) {
    records_.push_back(std::make_unique<Record>());
    free_records_.reserve(records_.size());
    return static_cast<std::int32_t>(records_.size() - 1);
  }
  const std::int32_t id = free_records_.back();
  free_records_.pop_back();
  return id;
}

absl::Status TransferEngine::Queue(Record& record, absl::Span<const After> after) {
  const Copy& copy = record.copy;
  device::Stream& stream = *lane(copy.lane).stream;
  stream.SetStage({base::StageKind::kCopy, copy.key.layer, copy.key.expert, copy.reason});
  for (const After& before : after) {
    if (!before.must_succeed && !before.event->Done()) {
      // What it waits for is over as well when it failed.
      stream.Wait(*before.event, before.edge).IgnoreError();
    }
  }
  COMOE_ASSIGN_OR_RETURN(record.begin, stream.Record());
  // Behind that event, which would take a failure that the next one is to have.
  for (const After& before : after) {
    if (before.must_succeed) {
      record.source = *before.event;
      COMOE_RETURN_IF_ERROR(stream.Wait(*before.event, before.edge));
    }
  }
  record.since = record.submitted = device_.Now();
  if (copy.source != nullptr) {
    const device::HoldUp held_up(HeldUpBy(copy), EdgeOf(copy.lane));
    COMOE_RETURN_IF_ERROR(stream.CopyAsync(copy.target, copy.source, blob_bytes_));
  } else {
    record.read.file = copy.file;
    record.read.key = copy.key;
    record.read.target = copy.target;
    COMOE_RETURN_IF_ERROR(stream.Submit(record.read));
  }
  COMOE_ASSIGN_OR_RETURN(record.done, stream.Record());
  return absl::OkStatus();
}

absl::StatusOr<TransferEngine::Submitted> TransferEngine::Submit(const Copy& copy,
                                                                 absl::Span<const After> after) {
  const std::int32_t id = TakeRecord();
  Record& record = *records_[static_cast<std::size_t>(id)];
  record.copy = copy;
  if (copy.pageable) {
    ++unpinned_copies_;
    if (!std::exchange(warned_unpinned_, true)) {
      base::Log(
          base::LogLevel::kWarning, "experts",
          "experts are copied from or to memory that is not page-locked: slow, and not at the same time "
          "as anything else");
    }
  }
  if (absl::Status queued = Queue(record, after); !queued.ok()) {
    record.begin = record.source = record.done = device::Event();
    free_records_.push_back(id);
    ++failed_copies_;
    return queued;
  }
  record.state = Record::State::kUnderWay;
  LaneState& own = lane(copy.lane);
  ++own.under_way;
  ++under_way_;
  if (copy.direction == base::CopyDirection::kHostToDevice) {
    link_free_at_ = std::max(link_free_at_, record.submitted) + seconds_per_blob_[copy.direction];
  }
  {
    base::MutexLock lock(&mutex_);
    ++awaited_;
  }
  Submitted submitted = {id, record.done};
  device_.Notify(record.done, *this,
                 static_cast<std::uint64_t>(id) | static_cast<std::uint64_t>(record.generation)
                                                      << kGenerationShift);
  return submitted;
}

void TransferEngine::Finish(std::int32_t id) {
  End(id, records_[static_cast<std::size_t>(id)]->done.Synchronize(absl::ZeroDuration()), false);
}

void TransferEngine::End(std::int32_t id, const absl::Status& status, bool hung) {
  Record& record = *records_[static_cast<std::size_t>(id)];
  const absl::Status end = status.ok() && record.copy.source_failed
                               ? absl::DataLossError("what was to be copied never arrived")
                               : status;
  LaneState& own = lane(record.copy.lane);
  --own.under_way;
  --under_way_;
  ended_ = true;
  if (end.ok()) {
    Measure(record);
  } else {
    ++failed_copies_;
  }
  if (record.copy.direction == base::CopyDirection::kHostToDevice) {
    const std::int32_t left = lane(Lane::kDemand).under_way + lane(Lane::kGuess).under_way;
    // The next one has just begun.
    link_free_at_ = device_.Now() + left * seconds_per_blob_[base::CopyDirection::kHostToDevice];
  }
  const Copy copy = record.copy;
  StartClocks(record, hung);
  record.begin = record.source = device::Event();
  if (hung) {
    record.state = Record::State::kGivenUp;  // what it reads into stays reserved, and so does the record
  } else {
    record.state = Record::State::kFree;
    record.done = device::Event();
    ++record.generation;
    free_records_.push_back(id);
  }
  client_.OnCopied(id, copy, end, hung);
}

void TransferEngine::StartClocks(const Record& ended, bool hung) {
  const double now = device_.Now();
  for (const std::unique_ptr<Record>& next : records_) {
    if (next->state != Record::State::kUnderWay) {
      continue;
    }
    const bool reads_it = next->source.state() != nullptr && next->source.state() == ended.done.state();
    if (reads_it || (next->copy.lane == ended.copy.lane && !hung)) {
      next->since = now;
    }
    if (reads_it && hung) {
      next->source = device::Event();  // nobody waits for that any more
    }
  }
}

void TransferEngine::Measure(const Record& record) {
  const Copy& copy = record.copy;
  double begin = record.submitted;
  double end = SecondsOf(record.done);
  if (std::isnan(end)) {  // no clock of the device's own: when we heard of it
    end = device_.Now();
  } else {
    begin = std::fmax(begin, std::fmax(SecondsOf(record.begin), SecondsOf(record.source)));  // not NaN
  }
  api::CopyTotals& totals = totals_[copy.direction];
  totals.bytes[copy.reason] += blob_bytes_;
  ++totals.copies;
  totals.seconds += std::max(0.0, end - begin);
  if (samples_.size() < kMaxSamples) {
    samples_.push_back({copy.direction, copy.reason, std::max(0.0, end - begin)});
  }
  // Copies in one direction go one after the other, whatever their streams: what counts begins where the one
  // before ended.
  double& last_end = last_end_[copy.direction];
  if (end < last_end) {
    return;
  }
  const double seconds = end - std::max(begin, std::exchange(last_end, end));
  double& rate = seconds_per_blob_[copy.direction];
  rate = measured_[copy.direction] ? rate + kNewest * (seconds - rate) : seconds;
  measured_[copy.direction] = true;
}

std::optional<device::Event> TransferEngine::Oldest() {
  const Record* oldest = nullptr;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = *records_[i];
    if (record.state != Record::State::kUnderWay) {
      continue;
    }
    if (record.done.Done()) {
      Finish(static_cast<std::int32_t>(i));
    } else if (oldest == nullptr || record.submitted < oldest->submitted) {
      oldest = &record;
    }
  }
  if (std::exchange(ended_, false)) {
    return device::Event();
  }
  return oldest == nullptr ? std::nullopt : std::make_optional(oldest->done);
}

double TransferEngine::link_queue_seconds() const { return std::max(0.0, link_free_at_ - device_.Now()); }

absl::Span<const api::CopySample> TransferEngine::TakeSamples() {
  std::swap(samples_, handed_out_);
  samples_.clear();
  return handed_out_;
}

void TransferEngine::AddTotals(api::OffloadTotals& totals) const {
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    api::CopyTotals& sum = totals.copies.values[d];
    const api::CopyTotals& own = totals_.values[d];
    for (std::size_t r = 0; r < base::kNumCopyReasons; ++r) {
      sum.bytes.values[r] += own.bytes.values[r];
    }
    sum.copies += own.copies;
    if (measured_.values[d] && seconds_per_blob_.values[d] > 0.0) {
      sum.bytes_per_second = static_cast<double>(blob_bytes_) / seconds_per_blob_.values[d];
    }
    sum.seconds += own.seconds;
  }
  for (const std::unique_ptr<Record>& record : records_) {
    if (record->state == Record::State::kUnderWay) {
      totals.copies[record->copy.direction].inflight_bytes += blob_bytes_;
    }
  }
  totals.failed_copies += failed_copies_;
  totals.cancelled_guesses += cancelled_guesses_;
  totals.unpinned_copies += unpinned_copies_;
}

}  // namespace comoe::experts
