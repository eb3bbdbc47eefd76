#include "engine/device/cuda/cuda_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda/cuda_events.h"
#include "engine/device/cuda/cuda_meter.h"

namespace comoe::device {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPutAlignment = 16;
constexpr std::size_t kUsuallyUnheard = 256;

// Whether bytes may travel with a launch: it writes whole units.
bool CanPut(const std::byte* target, std::size_t bytes) {
  return bytes <= CudaStream::kMostSent && bytes % kPutAlignment == 0 &&
         reinterpret_cast<std::uintptr_t>(target) % kPutAlignment == 0;
}

bool SameStage(const base::Stage& a, const base::Stage& b) {
  return a.kind == b.kind && a.layer == b.layer && a.expert == b.expert;
}

}  // namespace

CudaStream::CudaStream(Device& device, CudaContext& context, CudaEvents& events, CudaMeter& meter,
                       absl::string_view name, StreamKind kind)
    : device_(device), context_(context), events_(events), meter_(meter), name_(name), kind_(kind) {}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(Device& device, CudaContext& context,
                                                               CudaEvents& events, CudaMeter& meter,
                                                               absl::string_view name, StreamKind kind) {
  context.Enter();
  std::unique_ptr<CudaStream> stream(new CudaStream(device, context, events, meter, name, kind));
  // Kernels go before copies within the device; copies across the link have engines of their own.
  COMOE_ASSIGN_OR_RETURN(stream->stream_, context.MakeStream(kind == StreamKind::kCompute));
  stream->lane_ = meter.AddLane(name);
  if (kind == StreamKind::kCompute) {
    stream->unheard_.reserve(kUsuallyUnheard);
    COMOE_ASSIGN_OR_RETURN(stream->stage_,
                           device.Allocate(MemoryKind::kPinned, kStagePart * kStageParts, kAlignment));
    COMOE_ASSIGN_OR_RETURN(stream->arguments_,
                           device.Allocate(MemoryKind::kDevice, kStagePart * kStageParts, kAlignment));
  }
  return stream;
}

CudaStream::~CudaStream() {
  if (stream_ == nullptr) {
    return;
  }
  context_.Enter();
  context_.Check(context_.api().synchronize_stream(stream_), "cudaStreamSynchronize").IgnoreError();
  meter_.DropLane(lane_);
  if (kernel_state_.destroy != nullptr) {
    kernel_state_.destroy(kernel_state_.data);
  }
  context_.DropStream(stream_);
}

// Parts are taken in turn. When one has been left for the next but one, all that was queued with its bytes
// has been queued, and an event says when it is done.
absl::StatusOr<std::byte*> CudaStream::Stage(std::size_t bytes) {
  const std::size_t rounded = base::AlignUp(bytes, kAlignment);
  if (stage_.size() == 0) {
    return absl::FailedPreconditionError("cuda: only a compute stream takes arguments of launches");
  }
  if (rounded > kStagePart) {
    return StageApart(rounded);
  }
  if (stage_used_ + rounded > kStagePart) {
    if (capturing_) {
      return absl::ResourceExhaustedError("cuda: too many arguments for work that is to be kept");
    }
    COMOE_RETURN_IF_ERROR(NextPart());
  }
  std::byte* data = stage_.data() + stage_part_ * kStagePart + stage_used_;
  stage_used_ += rounded;
  return data;
}

absl::StatusOr<std::byte*> CudaStream::StageApart(std::size_t bytes) {
  if (capturing_) {
    return absl::ResourceExhaustedError("cuda: too many arguments for work that is to be kept");
  }
  context_.Enter();
  COMOE_RETURN_IF_ERROR(context_.Check(context_.api().synchronize_stream(stream_), "cudaStreamSynchronize"));
  if (bytes > stage_apart_.size()) {
    const std::size_t wanted = std::max(base::AlignUp(bytes, kStagePart), 2 * stage_apart_.size());
    stage_apart_ = Buffer();
    COMOE_ASSIGN_OR_RETURN(stage_apart_, device_.Allocate(MemoryKind::kPinned, wanted, kAlignment));
  }
  return stage_apart_.data();
}

absl::Status CudaStream::NextPart() {
  const std::size_t before = (stage_part_ + kStageParts - 1) % kStageParts;
  CudaCauses none;
  COMOE_ASSIGN_OR_RETURN(stage_free_[before], events_.Record(stream_, none));
  stage_part_ = (stage_part_ + 1) % kStageParts;
  stage_used_ = 0;
  return stage_free_[stage_part_].Synchronize();
}

absl::StatusOr<const std::byte*> CudaStream::StageCopy(const void* data, std::size_t bytes) {
  COMOE_ASSIGN_OR_RETURN(std::byte* const staged, Stage(bytes));
  std::memcpy(staged, data, bytes);
  return Send(staged, bytes);
}

absl::StatusOr<const std::byte*> CudaStream::Send(const std::byte* staged, std::size_t bytes) {
  if (bytes > kMostSent) {
    if (capturing_) {  // the ring's next round overwrites them
      return absl::ResourceExhaustedError("cuda: too many arguments for work that is to be kept");
    }
    return staged;
  }
  std::byte* const target = arguments_.data() + (staged - stage_.data());
  COMOE_RETURN_IF_ERROR(Put(target, staged, bytes));
  return target;
}

absl::Status CudaStream::Put(std::byte* target, const void* data, std::size_t bytes) {
  context_.Enter();
  return context_.Check(context_.api().put(target, data, bytes, stream_), "put");
}

absl::StatusOr<std::byte*> CudaStream::Scratch(std::size_t bytes) {
  return bytes > scratch_.size() ? Grow(scratch_, bytes) : scratch_.data();
}

absl::StatusOr<std::byte*> CudaStream::Table(std::size_t number, std::size_t bytes) {
  if (number >= tables_.size()) {
    tables_.resize(number + 1);
  }
  return bytes > tables_[number].size() ? Grow(tables_[number], bytes) : tables_[number].data();
}

absl::StatusOr<std::byte*> CudaStream::Grow(Buffer& buffer, std::size_t bytes) {
  if (capturing_) {
    return absl::FailedPreconditionError("cuda: work that is to be kept needs more memory than any before");
  }
  context_.Enter();
  COMOE_RETURN_IF_ERROR(context_.Check(context_.api().synchronize_stream(stream_), "cudaStreamSynchronize"));
  const std::size_t wanted = std::max(base::AlignUp(bytes, kStagePart), 2 * buffer.size());
  ++capture_version_;
  buffer = Buffer();
  COMOE_ASSIGN_OR_RETURN(buffer, device_.Allocate(MemoryKind::kDevice, wanted, kAlignment));
  return buffer.data();
}

// An executable graph.
class CudaCaptured final : public Stream::Captured {
 public:
  CudaCaptured(CudaContext& context, void* graph) : context_(context), graph_(graph) {}
  ~CudaCaptured() override {
    context_.Enter();
    context_.Check(context_.api().destroy_graph(graph_), "cudaGraphExecDestroy").IgnoreError();
  }
  CudaCaptured(const CudaCaptured&) = delete;
  CudaCaptured& operator=(const CudaCaptured&) = delete;
  void* graph() const { return graph_; }

 private:
  CudaContext& context_;
  void* const graph_;
};

// Stages are told apart by events between them, which kept work does not have.
bool CudaStream::can_capture() const {
  return kind_ == StreamKind::kCompute && ranges_ == nullptr && !meter_.listening() && !context_.one_stream();
}

absl::Status CudaStream::BeginCapture() {
  context_.Enter();
  // Arguments travel with the kernels that put them in place: no part of the ring is left meanwhile.
  if (stage_used_ > kStagePart / 2) {
    COMOE_RETURN_IF_ERROR(NextPart());
  }
  COMOE_RETURN_IF_ERROR(context_.Check(context_.api().begin_capture(stream_), "cudaStreamBeginCapture"));
  capturing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Stream::Captured>> CudaStream::EndCapture() {
  if (!std::exchange(capturing_, false)) {
    return absl::FailedPreconditionError("cuda: nothing is being captured");
  }
  context_.Enter();
  void* graph = nullptr;
  COMOE_RETURN_IF_ERROR(context_.Check(context_.api().end_capture(stream_, &graph), "cudaStreamEndCapture"));
  return std::unique_ptr<Captured>(std::make_unique<CudaCaptured>(context_, graph));
}

absl::Status CudaStream::Replay(Captured& work) {
  context_.Enter();
  return context_.Check(context_.api().run_graph(static_cast<CudaCaptured&>(work).graph(), stream_),
                        "cudaGraphLaunch");
}

absl::Status CudaStream::Mark(const CudaMark& mark) {
  CudaCauses none;
  COMOE_ASSIGN_OR_RETURN(const Event event, events_.Record(stream_, none));
  meter_.Add(lane_, mark, event);
  return absl::OkStatus();
}

void CudaStream::BeginStep(base::StepId step) {
  if (ranges_ != nullptr) {
    ranges_->BeginStep(step);
  }
}

void CudaStream::EndStep() {
  if (ranges_ != nullptr) {
    ranges_->EndStep();
  }
}

void CudaStream::SetStage(const base::Stage& stage) {
  if (capturing_) {
    return;
  }
  if (ranges_ != nullptr) {
    ranges_->SetStage(stage);
  }
  const bool changed = !SameStage(stage, work_.stage);
  const bool told =
      work_.stage.kind == base::StageKind::kLookahead || stage.kind == base::StageKind::kLookahead;
  work_.stage = stage;
  if (kind_ != StreamKind::kCompute || !meter_.on()) {
    return;
  }
  // What is queued next belongs to it. Look-ahead is always told apart: its share decides whether it goes on.
  if (!working_ || (changed && (told || meter_.listening()))) {
    failed_.Update(Mark(work_));
    working_ = true;
  }
}

absl::Status CudaStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  context_.Enter();
  const MemoryKind from = context_.KindOf(source);
  const MemoryKind to = context_.KindOf(target);
  const std::optional<base::CopyDirection> direction = CudaContext::DirectionOf(from, to);
  if (direction.has_value() && (from == MemoryKind::kHost || to == MemoryKind::kHost)) {
    context_.CountPageable();
  }
  if (kind_ == StreamKind::kCompute && !capturing_ && from == MemoryKind::kPinned &&
      to == MemoryKind::kDevice && CanPut(target, bytes)) {
    return Put(target, source, bytes);  // a copy would wait behind the experts on the link
  }
  const bool measured = kind_ == StreamKind::kCopy && meter_.on() && direction.has_value();
  if (measured) {
    COMOE_RETURN_IF_ERROR(Mark({CudaMark::What::kCopy, work_.stage, {}, *direction, bytes}));
  }
  COMOE_RETURN_IF_ERROR(
      context_.Check(context_.api().copy(target, source, bytes, stream_), "cudaMemcpyAsync"));
  return measured ? Mark({}) : absl::OkStatus();
}

absl::StatusOr<Event> CudaStream::Record() {
  COMOE_RETURN_IF_ERROR(std::exchange(failed_, absl::OkStatus()));
  return events_.Record(stream_, pending_);
}

absl::Status CudaStream::Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) {
  if (event.Done()) {
    return event.Synchronize(absl::ZeroDuration());
  }
  auto* state = dynamic_cast<CudaEventState*>(event.state());
  if (state == nullptr) {  // of another device
    return event.Synchronize(limit);
  }
  const bool measured = kind_ == StreamKind::kCompute && meter_.on();
  if (measured) {
    COMOE_RETURN_IF_ERROR(Mark({CudaMark::What::kStall, work_.stage, edge, {}, 0}));
  }
  context_.Enter();
  COMOE_RETURN_IF_ERROR(state->QueueWait(stream_));
  if (state->may_fail()) {
    pending_.push_back(event);
    // An event recorded behind it hears of its failure; nobody need ever look at that one.
    if (kind_ == StreamKind::kCompute) {
      unheard_.push_back(event);
    }
  }
  if (measured) {
    meter_.Add(lane_, work_, event);  // goes on once that has happened: no event of its own
    working_ = true;
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Synchronize() {
  if (std::exchange(working_, false)) {
    failed_.Update(Mark({}));
  }
  context_.Enter();
  const absl::Status done =
      context_.Check(context_.api().synchronize_stream(stream_), "cudaStreamSynchronize");
  CudaCauses causes = std::exchange(pending_, {});
  absl::Status first = std::exchange(failed_, absl::OkStatus());
  first.Update(done);
  for (const Event& cause : causes) {
    first.Update(cause.Synchronize(absl::ZeroDuration()));
  }
  for (const Event& cause : unheard_) {
    first.Update(cause.Synchronize(absl::ZeroDuration()));
  }
  unheard_.clear();
  if (kind_ == StreamKind::kCompute) {
    meter_.Collect();
  }
  return first;
}

void CudaStream::BeginHoldUp(base::WaitEdge edge) {
  if (kind_ == StreamKind::kCompute && meter_.on() && !capturing_) {
    failed_.Update(Mark({CudaMark::What::kStall, work_.stage, edge, {}, 0}));
  }
}

void CudaStream::EndHoldUp() {
  if (kind_ == StreamKind::kCompute && meter_.on() && !capturing_) {
    failed_.Update(Mark(working_ ? work_ : CudaMark{}));
  }
}

}  // namespace comoe::device
