// What a step would cost, as far as anybody knows: the composer's only question about experts and devices.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"

namespace comoe::api {

// Called on the engine thread while a step is composed, so every answer is arithmetic on what is known
// already.
class StepCosts {
 public:
  virtual ~StepCosts() = default;

  // How long a step of that many rows of that many sequences takes.
  virtual absl::Duration StepTime(std::int64_t rows, std::int64_t sequences) const = 0;
  // Fewer rows of a prompt than this cost about as much as this many: the experts they need have to be there
  // either way. 1: every row pays for itself.
  virtual std::int64_t BreakEvenChunk() const = 0;
  // What `candidate` adds to the experts that the sequences in `chosen` are predicted to need, in any unit;
  // equal numbers mean no preference.
  virtual double AddedDemand(absl::Span<const base::SequenceId> chosen, base::SequenceId candidate) const = 0;
};

// Knows nothing: constants.
class ConstantStepCosts final : public StepCosts {
 public:
  absl::Duration StepTime(std::int64_t rows, std::int64_t /*sequences*/) const override {
    return absl::Milliseconds(rows);
  }
  std::int64_t BreakEvenChunk() const override { return 1; }
  double AddedDemand(absl::Span<const base::SequenceId> /*chosen*/,
                     base::SequenceId /*candidate*/) const override {
    return 0.0;
  }
};

}  // namespace comoe::api
