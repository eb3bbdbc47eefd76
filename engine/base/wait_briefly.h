// Looking for what is about to happen before one sleeps: waking a thread takes tens of microseconds, more
// than many a wait.
#pragma once

#include <thread>

namespace comoe::base {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks whether `done` holds for about half a millisecond, which is longer than what lies between two layers
// of a step: first spinning, then giving the core to whoever wants it. True when it came to hold.
template <typename Done>
bool WaitBriefly(const Done& done) {
  // A pause takes 10 to 150 cycles, a yield with nobody waiting about 0.5 us.
  constexpr int kPauses = 2000;
  constexpr int kYields = 800;
  for (int i = 0; i < kPauses + kYields; ++i) {
    if (done()) {
      return true;
    }
    if (i < kPauses) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  return false;
}

}  // namespace comoe::base
