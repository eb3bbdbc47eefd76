// The per-target entry of panels_cpu.cc, for the other per-target files. Included once a target, like all
// -inl.h.
#if defined(COMOE_ENGINE_KERNELS_CPU_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COMOE_ENGINE_KERNELS_CPU_PANELS_INL_H_
#undef COMOE_ENGINE_KERNELS_CPU_PANELS_INL_H_
#else
#define COMOE_ENGINE_KERNELS_CPU_PANELS_INL_H_
#endif

#include "engine/kernels/cpu/panels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {

// Runs the job on the calling thread, with the order of sums that matmul.h promises. Allocates nothing; uses
// about 64 KiB of stack.
void RunPanels(const PanelJob& job);

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
