#include "engine/model/expert_serving.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/model/step_context.h"

namespace comoe::model {

namespace {

constexpr std::size_t kManyLayers = 256;
// The lane waits for its rows, then for bytes, for a copy's limit each; then it computes.
constexpr int kHostLaneWaits = 3;

}  // namespace

ServingScratch::ServingScratch(std::int64_t num_experts) {
  const auto n = static_cast<std::size_t>(num_experts);
  hits.reserve(n);
  hit_leases.reserve(n);
  arrivals.reserve(n);
  fetches.reserve(n);
  demand.reserve(n);
  demand_group.reserve(n);
  decisions.reserve(n);
  host_jobs.reserve(n);
  host_leases.reserve(n);
  used.reserve(n);
  imbalance.reserve(kManyLayers);
}

void ServingScratch::Clear() {
  hits.clear();
  hit_leases.clear();
  arrivals.clear();
  fetches.clear();
  demand.clear();
  demand_group.clear();
  host_jobs.clear();
  host_leases.clear();
}

absl::Status ExpertServing::Begin() {
  ServingScratch& s = context_.work.serving;
  s.Clear();
  TellVacated();
  COMOE_RETURN_IF_ERROR(Classify());
  if (!s.demand.empty()) {
    COMOE_RETURN_IF_ERROR(Decide());
    COMOE_RETURN_IF_ERROR(StartHostLane());
  }
  return IssueFetches();
}

absl::Status ExpertServing::ComputeHits() {
  const ServingScratch& s = context_.work.serving;
  if (next_fetch_ == s.fetches.size()) {
    GiveOrders();
  }
  return s.hits.empty() ? absl::OkStatus()
                        : Compute(s.hits, s.hits.size() == 1 ? s.hit_leases[0].key().expert : -1);
}

// Which experts are there, which are on their way, which are missing.
absl::Status ExpertServing::Classify() {
  ServingScratch& s = context_.work.serving;
  const DispatchPlan& dispatch = context_.work.dispatch;
  const api::SlotMap& slots = context_.director.slots(layer_);
  s.imbalance.push_back(dispatch.Imbalance());
  for (std::size_t g = 0; g < dispatch.groups().size(); ++g) {
    const DispatchPlan::Group& group = dispatch.groups()[g];
    const base::ExpertKey key{layer_, group.expert};
    if (slots.slot[static_cast<std::size_t>(group.expert)] < 0) {
      s.demand.push_back({key, static_cast<std::int32_t>(group.count)});
      s.demand_group.push_back(static_cast<std::int64_t>(g));
      continue;
    }
    kernels::ExpertRows work = {
        {},
        dispatch.rows().subspan(static_cast<std::size_t>(group.first), static_cast<std::size_t>(group.count)),
        group.first};
    absl::StatusOr<experts::Served> served = context_.experts.Acquire(key);
    if (absl::IsResourceExhausted(served.status())) {
      // It was lost on its way since the director last heard, and nothing is free to fetch it through: later.
      s.fetches.push_back({api::kStagingSlot, work, key});
      continue;
    }
    if (absl::IsFailedPrecondition(served.status())) {
      // A belief of the director's that is wrong would fail each later step as well.
      base::Logf(base::LogLevel::kWarning, "experts",
                 "expert %d of layer %d is not in its slot: it is copied", key.expert, key.layer);
      context_.director.OnVacated(base::Tier::kDevice, slots.slot[static_cast<std::size_t>(group.expert)],
                                  key, true);
      s.fetches.push_back({api::kStagingSlot, work, key});
      continue;
    }
    if (!served.ok()) {
      COMOE_RETURN_IF_ERROR(GiveUp(work, key, served.status()));
      continue;
    }
    ++s.served_hit;
    work.expert = served->lease.view();
    if (served->ready.Done()) {
      // It may have failed while nobody waited for it: that is no reason to fail now.
      if (const absl::Status status = served->ready.Synchronize(); !status.ok()) {
        --s.served_hit;
        context_.experts.Failed(std::move(served->lease), status);
        s.fetches.push_back({api::kStagingSlot, work, key});
        continue;
      }
      s.hits.push_back(work);
      s.hit_leases.push_back(std::move(served->lease));
    } else {
      s.arrivals.push_back({*std::move(served), work});
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertServing::Decide() {
  ServingScratch& s = context_.work.serving;
  const DispatchPlan& dispatch = context_.work.dispatch;
  const api::LaneState lanes = context_.Lanes();
  link_was_busy_ = lanes.link_queue_seconds > 0.0;
  s.decisions.assign(s.demand.size(), api::MissDecision{});
  context_.director.DecideMisses(layer_, s.demand, lanes, absl::MakeSpan(s.decisions));
  for (std::size_t i = 0; i < s.demand.size(); ++i) {
    const DispatchPlan::Group& group = dispatch.groups()[static_cast<std::size_t>(s.demand_group[i])];
    kernels::ExpertRows work = {
        {},
        dispatch.rows().subspan(static_cast<std::size_t>(group.first), static_cast<std::size_t>(group.count)),
        group.first};
    if (s.decisions[i].serving == api::ServingDecision::kHost && context_.host_lane != nullptr &&
        context_.host_lane->usable()) {
      absl::StatusOr<experts::Served> served = context_.experts.AcquireHost(s.demand[i].key);
      if (served.ok()) {
        ++s.served_host;
        work.expert = served->lease.view();
        s.host_jobs.push_back({work, served->ready, absl::OkStatus()});
        s.host_leases.push_back(std::move(served->lease));
        continue;
      }
    }
    s.fetches.push_back({s.decisions[i].slot, work, s.demand[i].key});
  }
  return absl::OkStatus();
}

absl::Status ExpertServing::StartHostLane() {
  ServingScratch& s = context_.work.serving;
  if (s.host_jobs.empty()) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(
      host_done_,
      context_.host_lane->Start(absl::MakeSpan(s.host_jobs), layer_, context_.Use(context_.work.normed),
                                context_.work.expert_out, context_.stream, context_.copy_limit));
  return absl::OkStatus();
}

// As many as there are places for.
absl::Status ExpertServing::IssueFetches() {
  ServingScratch& s = context_.work.serving;
  while (next_fetch_ < s.fetches.size()) {
    ServingScratch::Miss& miss = s.fetches[next_fetch_];
    absl::StatusOr<std::optional<experts::Served>> served = context_.experts.Fetch(miss.key, miss.slot);
    if (!served.ok()) {
      COMOE_RETURN_IF_ERROR(GiveUp(miss.work, miss.key, served.status()));
      ++next_fetch_;
      continue;
    }
    if (!served->has_value()) {
      return absl::OkStatus();
    }
    ++s.served_fetch;
    miss.work.expert = (*served)->lease.view();
    s.arrivals.push_back({**std::move(served), miss.work});
    ++next_fetch_;
  }
  return absl::OkStatus();
}

// Guesses wait until all that is certain was issued.
void ExpertServing::GiveOrders() {
  context_.experts.Prefetch(context_.director.Orders(layer_, context_.Lanes()));
  ordered_ = true;
}

absl::Status ExpertServing::Compute(absl::Span<const kernels::ExpertRows> work, std::int32_t expert) {
  const Workspace& w = context_.work;
  const std::int64_t num_slots = context_.rows * context_.config.experts_per_token;
  const std::int64_t padded = work.front().expert.layout->gate_up.n / 2;
  context_.stream.SetStage({base::StageKind::kExpert, layer_, expert});
  return kernels::ExpertFfn(context_.kernels,
                            {context_.Use(w.normed), work, w.ffn_scratch.Rows(0, num_slots).Cols(0, padded),
                             w.expert_out.Rows(0, num_slots)},
                            context_.stream);
}

absl::Status ExpertServing::ComputeArrival(ServingScratch::Arrival arrival, bool last) {
  const base::ExpertKey key = arrival.served.lease.key();
  context_.stream.SetStage({base::StageKind::kExpert, layer_, key.expert});
  const absl::Status arrived =
      context_.stream.Wait(arrival.served.ready, arrival.served.edge, context_.copy_limit);
  if (!arrived.ok()) {
    COMOE_RETURN_IF_ERROR(GiveUp(arrival.work, key, arrived));
    context_.experts.Failed(std::move(arrival.served.lease), arrived);
    return absl::OkStatus();
  }
  COMOE_RETURN_IF_ERROR(Compute({&arrival.work, 1}, key.expert));
  if (last) {  // all leases that are left end with the layer's experts
    context_.work.serving.hit_leases.push_back(std::move(arrival.served.lease));
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const device::Event used, context_.stream.Record());
  context_.experts.Release(std::move(arrival.served.lease), used);
  return absl::OkStatus();
}

absl::Status ExpertServing::Finish() {
  ServingScratch& s = context_.work.serving;
  std::size_t next = 0;
  COMOE_RETURN_IF_ERROR(ComputeArrivals(next));
  COMOE_RETURN_IF_ERROR(JoinHostLane());
  COMOE_RETURN_IF_ERROR(FetchTheRest(next));
  for (; next_fetch_ < s.fetches.size(); ++next_fetch_) {
    const ServingScratch::Miss& miss = s.fetches[next_fetch_];
    COMOE_RETURN_IF_ERROR(GiveUp(miss.work, miss.key,
                                 absl::ResourceExhaustedError("no staging slot is free, and none will be")));
    if (miss.slot != api::kStagingSlot) {
      context_.director.OnVacated(base::Tier::kDevice, miss.slot, miss.key, true);
    }
  }
  if (!ordered_) {
    GiveOrders();
  }
  COMOE_ASSIGN_OR_RETURN(const device::Event used, context_.stream.Record());
  for (experts::Lease& lease : s.hit_leases) {
    context_.experts.Release(std::move(lease), used);
  }
  s.hit_leases.clear();
  s.arrivals.clear();
  context_.experts.LayerPassed(layer_);
  TellVacated();
  return absl::OkStatus();
}

// The list grows while it is walked: a staging slot that is released takes the next miss.
absl::Status ExpertServing::ComputeArrivals(std::size_t& next) {
  ServingScratch& s = context_.work.serving;
  for (; next < s.arrivals.size(); ++next) {
    const bool last = next + 1 == s.arrivals.size() && next_fetch_ == s.fetches.size();
    COMOE_RETURN_IF_ERROR(ComputeArrival(std::move(s.arrivals[next]), last));
    COMOE_RETURN_IF_ERROR(IssueFetches());
  }
  return absl::OkStatus();
}

// The host lane held what they need, or victims and guesses do that are still on their way: then a place
// comes free when a copy ends.
absl::Status ExpertServing::FetchTheRest(std::size_t& next) {
  const ServingScratch& s = context_.work.serving;
  while (next_fetch_ < s.fetches.size()) {
    const std::size_t before = next_fetch_;
    COMOE_RETURN_IF_ERROR(IssueFetches());
    COMOE_RETURN_IF_ERROR(ComputeArrivals(next));
    if (next_fetch_ > before) {
      continue;
    }
    const std::optional<device::Event> copy = context_.experts.UnderWay();
    if (!copy.has_value()) {
      return absl::OkStatus();
    }
    const device::HoldUp held_up(&context_.stream, base::WaitEdge::kSlotFree);
    if (absl::IsDeadlineExceeded(copy->Synchronize(context_.copy_limit))) {
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

// Copies may have failed at any time.
void ExpertServing::TellVacated() {
  for (const experts::ExpertCache::Vacated& vacated : context_.experts.TakeVacated()) {
    context_.director.OnVacated(vacated.tier, vacated.slot, vacated.key, vacated.usable);
  }
}

// So that the host's rates are known as they are in a step. By now all copies of the layer are queued.
void ExpertServing::TimeHostLane() {
  const ServingScratch& s = context_.work.serving;
  double seconds = 0.0;
  for (const HostJob& job : s.host_jobs) {
    seconds += context_.lanes.host_seconds_per_expert +
               static_cast<double>(job.work.rows.size() - 1) * context_.lanes.host_seconds_per_row;
  }
  api::LaneState now;
  context_.experts.Describe(now);
  context_.host_lane->Expect(seconds, link_was_busy_ || !s.fetches.empty() || now.link_queue_seconds > 0.0);
}

absl::Status ExpertServing::JoinHostLane() {
  ServingScratch& s = context_.work.serving;
  if (s.host_jobs.empty()) {
    return absl::OkStatus();
  }
  TimeHostLane();
  const absl::Status done =
      context_.stream.Wait(host_done_, base::WaitEdge::kHostLane, kHostLaneWaits * context_.copy_limit);
  if (absl::IsDeadlineExceeded(done) && !host_done_.Done()) {
    context_.host_lane->Abandon();
  }
  const bool direct = context_.host_lane->DirectOutput(context_.rows).data != nullptr;
  for (std::size_t i = 0; i < s.host_jobs.size(); ++i) {
    const absl::Status& status = s.host_jobs[i].status.ok() ? done : s.host_jobs[i].status;
    if (status.ok()) {
      if (direct) {
        context_.work.dispatch.MoveToHost(s.host_jobs[i].work.first_out, s.host_jobs[i].work.rows.size());
      }
      context_.experts.Release(std::move(s.host_leases[i]), host_done_);
      continue;
    }
    COMOE_RETURN_IF_ERROR(GiveUp(s.host_jobs[i].work, s.host_leases[i].key(), status));
    // One job's bytes that never came fail the lane's event, and leave the others' where they are.
    const device::Event& ready = s.host_jobs[i].ready;
    if (ready.Done() && ready.Synchronize().ok()) {
      context_.experts.Release(std::move(s.host_leases[i]), host_done_);
    } else {
      context_.experts.Failed(std::move(s.host_leases[i]), status);
    }
  }
  s.host_leases.clear();
  s.host_jobs.clear();
  return absl::OkStatus();
}

absl::Status ExpertServing::GiveUp(const kernels::ExpertRows& work, base::ExpertKey key,
                                   const absl::Status& why) {
  Workspace& w = context_.work;
  const auto k = static_cast<std::size_t>(context_.config.experts_per_token);
  const absl::Status status =
      base::Annotate(why, absl::StrCat("expert ", key.expert, " of layer ", key.layer, " could not be had"));
  w.any_row_failed = true;
  for (std::size_t i = 0; i < work.rows.size(); ++i) {
    const auto row = static_cast<std::size_t>(work.rows[i]);
    if (w.row_status[row].ok()) {
      w.row_status[row] = status;
    }
    // What follows computes on: give it numbers, with no weight. The row's own input serves as well as any.
    for (std::size_t j = row * k; j < (row + 1) * k; ++j) {
      if (w.dispatch.source()[j] == work.first_out + static_cast<std::int64_t>(i)) {
        w.weights[j] = 0.0F;
      }
    }
    const tensor::TensorView out = w.expert_out.Rows(work.first_out + static_cast<std::int64_t>(i), 1);
    COMOE_RETURN_IF_ERROR(context_.stream.CopyAsync(out.data, w.normed.Rows(work.rows[i], 1).data,
                                                    static_cast<std::size_t>(out.cols) * sizeof(float)));
  }
  return absl::OkStatus();
}

}  // namespace comoe::model
