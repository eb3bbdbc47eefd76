#include "scheduler/routing/trace_predictors.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/gate_lookahead.h"
#include "scheduler/routing/mix_predictor.h"
#include "scheduler/routing/shared_row_predictor.h"
#include "scheduler/routing/token_counts.h"
#include "scheduler/routing/transition_counts.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {
namespace {

using MakeFunction = std::unique_ptr<RowPredictor> (*)(const TierShape& shape);
struct Entry {
  absl::string_view name;
  MakeFunction make;
};

constexpr std::int32_t kWindowRows = 100;
constexpr std::uint64_t kTokenTableBytes = std::uint64_t{16} << 20;

constexpr std::array<Entry, 7> kEntries = {{
    {"global",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<SharedRowPredictor>(shape, MakeGlobalFrequency(shape));
     }},
    {"window",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<SharedRowPredictor>(shape,
                                                   std::make_unique<WindowPredictor>(shape, kWindowRows));
     }},
    {"decayed",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<SharedRowPredictor>(shape, std::make_unique<DecayedCounts>(shape));
     }},
    {"token",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<TokenCounts>(shape, kTokenTableBytes);
     }},
    {"transition",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<TransitionCounts>(shape);
     }},
    {"lookahead",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<GateLookahead>(shape);
     }},
    {"mix",
     [](const TierShape& shape) -> std::unique_ptr<RowPredictor> {
       return std::make_unique<MixPredictor>(shape, MixOptions{});
     }},
}};

constexpr std::array<absl::string_view, kEntries.size()> Names() {
  std::array<absl::string_view, kEntries.size()> names{};
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    names[i] = kEntries[i].name;
  }
  return names;
}
constexpr std::array<absl::string_view, kEntries.size()> kNames = Names();

}  // namespace

absl::Span<const absl::string_view> TracePredictorNames() { return kNames; }

absl::StatusOr<std::unique_ptr<RowPredictor>> MakeTracePredictor(absl::string_view name,
                                                                 const TierShape& shape) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) {
      return entry.make(shape);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no predictor is called \"", name, "\": choose from ", absl::StrJoin(kNames, ", ")));
}

}  // namespace comoe::routing
