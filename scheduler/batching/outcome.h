// What came of a step, and of a request when it ends.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "scheduler/batching/request.h"
#include "scheduler/batching/scheduler_metrics.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

// Never less than zero, whatever a clock does.
absl::Duration Elapsed(absl::Time from, absl::Time to);

// INTERNAL: the engine did not answer what it was asked. A span that failed answers with its status alone.
absl::Status CheckResult(const api::StepPlan& plan, const api::StepResult& result, std::int32_t vocab_size);

// What the owner of a request hears that ends at `now`.
RequestOutcome MakeOutcome(const Sequence& sequence, FinishReason reason, const absl::Status& status,
                           base::TokenId matched_token, absl::Time now);

// Its times, and the work that was for nothing.
void RecordOutcome(const Sequence& sequence, const RequestOutcome& outcome, SchedulerMetrics& metrics);

}  // namespace comoe::batching
