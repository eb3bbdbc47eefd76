// What the server's tests share: the demo model's tokenizer over a fake engine, and transports that remember.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/base/sync.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/batching/scheduler.h"
#include "server/serving_state.h"
#include "tests/support/fake_engine.h"

namespace comoe::server {

inline std::unique_ptr<tokenizer::Tokenizer> LoadDemoTokenizer() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  const std::string path = std::string(root != nullptr ? root : ".") + "/models/moe-32x4-demo/tokenizer.json";
  absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> loaded = tokenizer::Tokenizer::Load(path);
  COMOE_CHECK(loaded.ok(), "the demo model's tokenizer loads");
  return *std::move(loaded);
}

// An engine whose tokens are those of `tokenizer`, long enough for tests of long streams.
inline testing::FakeEngineOptions EngineFor(const tokenizer::Tokenizer& tokenizer) {
  testing::FakeEngineOptions options;
  options.vocab_size = tokenizer.vocab_size();
  options.max_positions = 4096;
  options.max_rows = 512;
  options.num_blocks = {2048};
  return options;
}

inline Backend BackendOf(const testing::FakeEngine& engine, batching::Scheduler& scheduler,
                         const tokenizer::Tokenizer* tokenizer) {
  Backend backend;
  backend.scheduler = &scheduler;
  backend.tokenizer = tokenizer;
  backend.model = engine.model_info();
  backend.model.name = "demo";
  backend.max_positions = engine.capacity().max_positions;
  backend.device = "fake";
  return backend;
}

// Polls, for what other threads bring about and nobody signals.
template <typename Condition>
bool Eventually(Condition condition, absl::Duration timeout = absl::Seconds(30)) {
  const absl::Time until = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > until) {
      return false;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace comoe::server
