// Which thread is the engine thread, for the one rule about it that the server must keep: it makes no gRPC
// call (64 writes from it cost 0.6 ms, a good part of a step).
//
// The scheduler's thread is marked by the first call of Server::GatherWakes' function, which comes before
// anything else that it tells; every call into gRPC that ends or writes an RPC asks first.
#pragma once

#include "engine/base/check.h"

namespace comoe::server {

class EngineThread {
 public:
  // The calling thread is it, until it ends.
  static void Mark() { is_current_ = true; }
  static bool IsCurrent() { return is_current_; }
  // Before a call into gRPC.
  static void CheckNotCurrent() { COMOE_CHECK(!is_current_, "the engine thread makes no gRPC call"); }

 private:
  inline static thread_local bool is_current_ = false;
};

}  // namespace comoe::server
