// Lists that serving a MoE layer's experts needs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/expert_director.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/kernels/expert_ffn.h"

namespace comoe::model {

// An expert for the host lane: its bytes in host memory, once `ready` has happened, and its rows.
struct HostJob {
  kernels::ExpertRows work;
  device::Event ready;
  absl::Status status;  // of `ready`, where HostLane::Start found it failed: the job was left out
};

// Lists of one layer, kept from layer to layer so that a step allocates nothing. Owned by the engine thread.
struct ServingScratch {
  explicit ServingScratch(std::int64_t num_experts);
  // Empties the lists: leases end.
  void Clear();

  struct Arrival {
    experts::Served served;
    kernels::ExpertRows work;
  };
  struct Miss {
    std::int32_t slot;
    kernels::ExpertRows work;  // its rows; the expert is not known yet
    base::ExpertKey key;
  };

  std::vector<kernels::ExpertRows> hits;
  std::vector<experts::Lease> hit_leases;
  std::vector<Arrival> arrivals;  // in the order in which their copies were issued
  std::vector<Miss> fetches;      // to be issued
  std::vector<api::ExpertDemand> demand;
  std::vector<std::int64_t> demand_group;  // index of each demand's dispatch group
  std::vector<api::MissDecision> decisions;
  std::vector<HostJob> host_jobs;
  std::vector<experts::Lease> host_leases;
  std::vector<std::int32_t> used;  // experts of a layer that ran without the host, each once

  std::vector<double>
      imbalance;  // of each MoE layer of the step: most rows of an expert over the mean of all
  // Since the step began.
  std::uint64_t served_hit = 0, served_fetch = 0, served_host = 0;
};

}  // namespace comoe::model
