// The object graph behind the flags: device, tiers of experts, policy, tokenizer and engine.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/engine_options.h"
#include "engine/api/engine.h"
#include "engine/api/step_costs.h"
#include "engine/tokenizer/tokenizer.h"

namespace comoe::cli {

// A loaded model, ready to step, and all it needs. Destroyed as a whole.
class EngineBundle {
 public:
  virtual ~EngineBundle() = default;
  virtual api::Engine& engine() = 0;
  // nullptr when the folder has no tokenizer.json.
  virtual const tokenizer::Tokenizer* tokenizer() const = 0;
  virtual absl::string_view device_description() const = 0;
  // A line for each tier of experts; "" where there are none.
  virtual std::string tiers_description() const = 0;
  // What the hub knows for the composer; nullptr under other policies. Lives as long as the bundle.
  virtual const api::StepCosts* step_costs() const = 0;
  // Writes --hub-state, if there is one, whole or not at all. When no step runs any more.
  virtual absl::Status SaveHubState() const = 0;
  virtual double load_seconds() const = 0;
};

// Checks memory before it loads, and shows progress on stderr. Errors say what, where and what to do.
absl::StatusOr<std::unique_ptr<EngineBundle>> LoadEngine(const EngineOptions& options);

}  // namespace comoe::cli
