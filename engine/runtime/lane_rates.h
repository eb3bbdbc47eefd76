// How long an expert takes on each lane, measured once at start: what decisions begin with.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "engine/api/expert_director.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/host_lane.h"
#include "engine/model/workspace.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::runtime {

// Computes an expert of zeros on `compute` and, if there is one, on the host lane; fills in the LaneState's
// seconds on either. All zero on devices whose events carry no time (the CPU). Uses the workspace as scratch.
absl::StatusOr<api::LaneState> MeasureLanes(const tensor::BlobLayout& layout,
                                            const kernels::KernelTable& kernels, model::Workspace& work,
                                            device::Stream& compute, model::HostLane* host_lane,
                                            device::Device& device);

// Bytes a second of one blob's copy alone; 0 where events carry no time. `page_lock`: what crosses the link
// is page-locked, if it can be.
struct CopyRates {
  double host_to_device = 0.0;
  double device_to_host = 0.0;
  double host_to_host = 0.0;  // into page-locked memory; 0: there is none
};
absl::StatusOr<CopyRates> MeasureCopies(device::Device& device, std::size_t blob_bytes, bool page_lock);

}  // namespace comoe::runtime
