// Whoever decides where experts lie and how many places there are: same steps, same bits. Where the host lane
// computes some, in an order of its own, what differs is counted.
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/engine/runtime/tokens/token_runs.h"

namespace comoe::testing {
namespace {

constexpr std::int64_t kLongestPrompt = 40;

// Of one engine: every batch, one after the other.
absl::StatusOr<std::vector<Drawn>> RunBatches(const CheckOptions& options, const Setting& setting,
                                              std::int32_t* vocab) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<cli::EngineBundle> bundle, Load(options, setting));
  api::Engine& engine = bundle->engine();
  *vocab = engine.model_info().vocab_size;
  std::vector<Drawn> runs;
  for (const std::int64_t batch : options.batches) {
    COMOE_ASSIGN_OR_RETURN(const auto prompts, Prompts(options, engine.model_info(), batch, kLongestPrompt));
    // A batch of one is greedy in one run and drawn in another.
    for (int parity = 0; parity < (batch == 1 ? 2 : 1); ++parity) {
      COMOE_ASSIGN_OR_RETURN(Drawn run, RunFree(engine, prompts, options.decodes, parity));
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

}  // namespace

absl::StatusOr<nlohmann::json> CheckPolicies(const CheckOptions& options, bool* passed) {
  nlohmann::json points = nlohmann::json::array();
  Difference exact;
  Difference lane;
  int settings = 0;
  int failed = 0;
  for (const std::string& activations : options.activations) {
    Setting setting;
    setting.activations = activations;
    std::int32_t vocab = 0;
    COMOE_ASSIGN_OR_RETURN(const std::vector<Drawn> expected, RunBatches(options, setting, &vocab));
    for (const std::string& policy : options.policies) {
      for (const double capacity : options.capacities) {
        if (policy == "naive" && capacity != options.capacities.front()) {
          continue;  // it keeps nothing
        }
        for (const std::string& on : options.lanes) {
          setting = {policy, capacity, on, activations};
          const std::string name =
              absl::StrCat(policy, ", ", 100 * capacity, " %, lane ", on, ", ", activations);
          absl::StatusOr<std::vector<Drawn>> runs = RunBatches(options, setting, &vocab);
          COMOE_RETURN_IF_ERROR(base::Annotate(runs.status(), name));
          Difference difference;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            difference.Add(Compare(expected[i], (*runs)[i], vocab));
          }
          ++settings;
          (on == "on" ? lane : exact).Add(difference);
          if (on != "on" && !difference.none()) {
            ++failed;
            std::printf("FAILED %s: %s\n", name.c_str(), difference.Json().dump().c_str());
          }
          nlohmann::json point = difference.Json();
          point.update(
              {{"policy", policy}, {"capacity", capacity}, {"host_lane", on}, {"activations", activations}});
          if (on == "on" || !difference.none()) {
            points.push_back(std::move(point));
          }
        }
      }
    }
  }
  std::printf(
      "policies: %d settings against resident; lane off: %lld of %lld tokens and %lld of %lld rows of "
      "logits differ; lane on: %lld of %lld tokens, by at most %.3g\n",
      settings, static_cast<long long>(exact.other_tokens), static_cast<long long>(exact.tokens),
      static_cast<long long>(exact.other_rows), static_cast<long long>(exact.rows),
      static_cast<long long>(lane.other_tokens), static_cast<long long>(lane.tokens), lane.largest);
  *passed = failed == 0;
  return nlohmann::json{{"settings", settings},
                        {"failed", failed},
                        {"lane_off", exact.Json()},
                        {"lane_on", lane.Json()},
                        {"points", std::move(points)}};
}

}  // namespace comoe::testing
