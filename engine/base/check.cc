#include "engine/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace comoe::base {

void CheckFailed(const char* file, int line, const char* condition, const char* invariant) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s (%s)\n", file, line, invariant, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace comoe::base
