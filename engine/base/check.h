// COMOE_CHECK for our own bugs only: it prints which invariant failed and ends the process. Bad input, files
// and memory pressure are never checked with it; they are a Status. COMOE_DCHECK is compiled out of release
// builds.
#pragma once

namespace comoe::base {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const char* invariant);

}  // namespace comoe::base

#define COMOE_CHECK(condition, invariant) \
  ((condition) ? static_cast<void>(0) : ::comoe::base::CheckFailed(__FILE__, __LINE__, #condition, invariant))

#ifdef NDEBUG
#define COMOE_DCHECK(condition, invariant) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define COMOE_DCHECK(condition, invariant) COMOE_CHECK(condition, invariant)
#endif
