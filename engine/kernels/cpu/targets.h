// How a per-target file hands out its entry: the file exports its function with HWY_EXPORT and defines
// <Op>ForTarget with COMOE_KERNEL_FOR_TARGET; cpu_kernels.cc puts the tables together once, so a call needs
// no dispatch and there is no chosen target to change at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/kernel_table.h"

namespace comoe::kernels {

decltype(KernelTable::rms_norm) RmsNormForTarget(std::int64_t target);
decltype(KernelTable::matmul) MatMulForTarget(std::int64_t target);
decltype(KernelTable::rope) RopeForTarget(std::int64_t target);
decltype(KernelTable::attention) AttentionForTarget(std::int64_t target);
decltype(KernelTable::moe_gate) MoeGateForTarget(std::int64_t target);
decltype(KernelTable::expert_ffn) ExpertFfnForTarget(std::int64_t target);
decltype(KernelTable::moe_combine) MoeCombineForTarget(std::int64_t target);
decltype(KernelTable::add) AddForTarget(std::int64_t target);
decltype(KernelTable::clamp) ClampForTarget(std::int64_t target);

}  // namespace comoe::kernels

// At namespace scope after HWY_EXPORT(function), outside the per-target passes. `target` is one bit of
// HWY_TARGETS.
#define COMOE_KERNEL_FOR_TARGET(name, entry, function)      \
  decltype(KernelTable::entry) name(std::int64_t target) {  \
    hwy::ChosenTarget chosen;                               \
    chosen.Update(target);                                  \
    return HWY_DISPATCH_TABLE(function)[chosen.GetIndex()]; \
  }
