#include "scheduler/routing/parameters.h"

#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace comoe::routing {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;

using P = HubParameters;
constexpr std::array kTable = {
    ParameterInfo{"window", &P::window, true, 1, 1e6, 100, 100, 100,
                  "rows of a sequence's past that its profile covers, and of the simple predictor",
                  "profiles are steadier and follow a change of subject later",
                  "profiles follow at once and are noisier", "comoe_expert_lookups_total"},
    ParameterInfo{"decay", &P::decay, false, 0.5, 0.9999, 0.97, 0.97, 0.97,
                  "what a use still counts for a step later, in the worth of keeping an expert",
                  "the device keeps what is used in the long run",
                  "the device keeps what was used last; below 0.9 it thrashes", "comoe_expert_lookups_total"},
    ParameterInfo{"top_k_multiple", &P::top_k_multiple, false, 1, 64, 1, 2, 1,
                  "experts a row may ask to have prefetched, in multiples of k",
                  "more of what is needed is prefetched, and more is for nothing",
                  "only the surest experts of a row are prefetched", "comoe_expert_prefetch_bytes_total"},
    ParameterInfo{"cut_off", &P::cut_off, false, 0, 1, 0.7, 0.4, 0.7,
                  "probability that the batch needs an expert below which it is not prefetched",
                  "fewer and surer guesses", "more guesses, more of them wrong",
                  "comoe_expert_prefetch_bytes_total"},
    ParameterInfo{"byte_price", &P::byte_price, false, 0, 64, 2, 1, 2,
                  "seconds of waiting that a second of the link's time for nothing has to save elsewhere",
                  "fewer bytes are moved for nothing; an idle link stays idle",
                  "guesses are made whenever they may save time", "comoe_expert_prefetch_bytes_total"},
    ParameterInfo{"look_ahead", &P::look_ahead, true, 0, 8, 1, 2, 1,
                  "MoE layers ahead for which the engine applies routers early; 0: none",
                  "copies start earlier on a slow link; each layer costs a small matrix product",
                  "less work on the device, less time to copy", "comoe_device_compute_seconds_total"},
    ParameterInfo{"look_ahead_limit", &P::look_ahead_limit, false, 0, 1, 0.02, 0.02, 0.02,
                  "share of a step's time above which the look-ahead is cut; 1: never",
                  "scores are there although they are dear", "a small model keeps its time for itself",
                  "comoe_hub_look_ahead_layers"},
    ParameterInfo{"prefetch_depth", &P::prefetch_depth, true, 0, 256, 2, 8, 2,
                  "prefetch orders after a layer at most; 0: no prefetch",
                  "an idle link does more; a wrong forecast costs more", "the link idles more",
                  "comoe_expert_stall_seconds_total"},
    ParameterInfo{"guess_slots", &P::guess_slots, true, 0, 4096, 4, 12, 4,
                  "device slots that guesses may hold at the cost of experts worth keeping",
                  "more guesses stay until they are needed", "guesses displace each other",
                  "comoe_expert_lookups_total"},
    ParameterInfo{"bytes_in_flight", &P::bytes_in_flight, true, 0, 64 * kGiB, 16 * kMiB, 64 * kMiB, 16 * kMiB,
                  "bytes of guesses that may wait for the link",
                  "the link is never without work; a certain miss may find more before it",
                  "certain misses never wait long", "comoe_expert_stall_seconds_total"},
    ParameterInfo{"staging_slots", &P::staging_slots, true, 0, 1024, 0, 0, 0,
                  "device slots for experts that only pass through; 0: one in eight, four at most",
                  "more misses of a layer are under way at once; fewer experts are kept",
                  "more experts are kept", "comoe_expert_stall_seconds_total"},
    ParameterInfo{"device_share", &P::device_share, false, 0, 1, 0, 0, 0,
                  "share of all experts that lie on the device; 0: as --expert-cache-bytes says",
                  "more hits, less memory for KV", "fewer hits", "comoe_expert_lookups_total"},
    ParameterInfo{"pinned_share", &P::pinned_share, false, 0, 1, 1, 1, 1,
                  "share of all experts that lie in page-locked memory",
                  "fewer copies through pageable memory; less memory for others",
                  "leaves memory to others; misses there are slower", "comoe_expert_transfer_bytes_total"},
    ParameterInfo{"admission", &P::admission, false, 0, 16, 1, 1, 1,
                  "how many times the worth of what it displaces a miss must have to be kept",
                  "the device changes less and adapts later", "every miss is kept, however rare",
                  "comoe_expert_evictions_total"},
    ParameterInfo{"prediction_interval", &P::prediction_interval, true, 1, 1024, 1, 1, 1,
                  "steps from one lesson of the predictors to the next",
                  "less time on the predictors; they follow later", "predictors follow at once",
                  "comoe_director_seconds_total"},
    ParameterInfo{"predictor_thread", &P::predictor_thread, true, 0, 2, 0, 2, 2,
                  "where predictors run: 0 on the engine thread; 1 on a thread of their own, and a late forecast "
                  "is not waited for; 2 there once they were measured to take more than 2 % of a step",
                  "a slow predictor costs the step nothing; forecasts may be a layer old",
                  "forecasts are never late", "comoe_director_seconds_total"},
    ParameterInfo{"token_table_bytes", &P::token_table_bytes, true, 0, 4 * kGiB, 4 * kMiB, 16 * kMiB,
                  16 * kMiB, "memory of the counts by token id", "more tokens are known",
                  "rare tokens are forgotten", "comoe_expert_prefetch_bytes_total"},
    ParameterInfo{"reuse_weight", &P::reuse_weight, false, 0, 8, 0.5, 1, 1,
                  "weight of the later use of an expert when a miss is copied rather than computed",
                  "more is copied, the device fills sooner", "each layer for itself",
                  "comoe_expert_served_total"},
    ParameterInfo{"hysteresis", &P::hysteresis, false, 0, 1, 0.1, 0.05, 0.1,
                  "by what share something must be better before the hub changes over to it",
                  "decisions are steadier", "decisions follow each measurement", "comoe_expert_served_total"},
    ParameterInfo{"promotions", &P::promotions, true, 0, 256, 1, 2, 2,
                  "orders into page-locked memory after a layer at most; 0: none",
                  "page-locked memory follows demand sooner", "less copying within the host",
                  "comoe_expert_transfer_bytes_total"},
};

bool InRange(const ParameterInfo& info, double value) {
  return value >= info.smallest && value <= info.largest && (!info.whole || value == std::floor(value));
}

absl::Status OutOfRange(const ParameterInfo& info, double value) {
  return absl::InvalidArgumentError(absl::StrCat("hub parameter ", info.name, ": ", value, " is not ",
                                                 info.whole ? "a whole number " : "", "in [", info.smallest,
                                                 ", ", info.largest, "]"));
}

}  // namespace

absl::string_view HubModeName(HubMode mode) { return mode == HubMode::kLatency ? "latency" : "throughput"; }

absl::StatusOr<HubMode> ParseHubMode(absl::string_view name) {
  for (const HubMode mode : {HubMode::kLatency, HubMode::kThroughput}) {
    if (name == HubModeName(mode)) {
      return mode;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no mode of the hub is called \"", name, "\": choose latency or throughput"));
}

absl::Span<const ParameterInfo> HubParameterTable() { return kTable; }

const ParameterInfo* FindHubParameter(absl::string_view name) {
  for (const ParameterInfo& info : kTable) {
    if (name == info.name) {
      return &info;
    }
  }
  return nullptr;
}

HubParameters ConservativeParameters() {
  HubParameters parameters;
  for (const ParameterInfo& info : kTable) {
    parameters.*info.field = info.conservative;
  }
  return parameters;
}

HubParameters ModeParameters(HubMode mode) {
  HubParameters parameters;
  for (const ParameterInfo& info : kTable) {
    parameters.*info.field = mode == HubMode::kLatency ? info.latency : info.throughput;
  }
  return parameters;
}

absl::Status SetHubParameter(absl::string_view name, double value, HubParameters* parameters) {
  const ParameterInfo* info = FindHubParameter(name);
  if (info == nullptr) {
    std::vector<absl::string_view> names;
    for (const ParameterInfo& known : kTable) {
      names.emplace_back(known.name);
    }
    return absl::NotFoundError(absl::StrCat("no parameter of the hub is called \"", name,
                                            "\": choose one of ", absl::StrJoin(names, ", ")));
  }
  if (!InRange(*info, value)) {
    return OutOfRange(*info, value);
  }
  parameters->*info->field = value;
  return absl::OkStatus();
}

absl::StatusOr<double> GetHubParameter(absl::string_view name, const HubParameters& parameters) {
  HubParameters copy = parameters;
  const ParameterInfo* info = FindHubParameter(name);
  if (info == nullptr) {
    return SetHubParameter(name, 0.0, &copy);  // the same message
  }
  return parameters.*info->field;
}

absl::Status SetHubParameters(absl::string_view text, HubParameters* parameters) {
  HubParameters changed = *parameters;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0.0;
    if (sides.size() != 2 || !absl::SimpleAtod(sides[1], &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("hub parameters: \"", part, "\" is not of the form name=number"));
    }
    COMOE_RETURN_IF_ERROR(SetHubParameter(absl::StripAsciiWhitespace(sides[0]), value, &changed));
  }
  *parameters = changed;
  return absl::OkStatus();
}

absl::Status CheckHubParameters(const HubParameters& parameters) {
  for (const ParameterInfo& info : kTable) {
    if (!InRange(info, parameters.*info.field)) {
      return OutOfRange(info, parameters.*info.field);
    }
  }
  return absl::OkStatus();
}

std::string HubParameterDocumentation() {
  std::string text =
      "| parameter | range | conservative | latency | throughput | what it is | raising it | lowering it | "
      "watch |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const ParameterInfo& info : kTable) {
    absl::StrAppend(&text, "| `", info.name, "` | ", info.smallest, " to ", info.largest, " | ",
                    info.conservative, " | ", info.latency, " | ", info.throughput, " | ");
    absl::StrAppend(&text, info.meaning, " | ", info.raising, " | ", info.lowering, " | `", info.metric,
                    "` |\n");
  }
  return text;
}

}  // namespace comoe::routing
