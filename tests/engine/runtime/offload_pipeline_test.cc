// What overlaps with what, in exact seconds on the virtual clock.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/offload_run.h"
#include "engine/base/rng.h"
#include "engine/checkpoint/memory_plan.h"
#include "gtest/gtest.h"

namespace comoe {
namespace {

std::string Demo() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  return absl::StrCat(root != nullptr ? root : ".", "/models/moe-32x4-demo");
}

std::uint64_t BlobBytes() {
  const absl::StatusOr<cli::CheckpointFolder> folder = cli::OpenCheckpoint(Demo(), "");
  EXPECT_TRUE(folder.ok()) << folder.status();
  return checkpoint::PlanMemory(folder->config, folder->tensors.expert_dtype).expert_bytes;
}

// A copy takes `copy` seconds, an expert `compute`, everything else `dense` a kernel.
std::shared_ptr<const device::EmulatedRates> Rates(double copy, double compute, double dense) {
  auto rates = std::make_shared<device::EmulatedRates>();
  rates->link_bytes_per_second = static_cast<double>(BlobBytes()) / copy;
  rates->link_latency_seconds = 0.0;
  rates->device_launch_seconds = 0.0;
  rates->device_seconds_per_expert = compute;
  rates->dense_seconds_per_kernel = dense;
  return rates;
}

cli::EngineOptions Options(double copy, double compute, double dense) {
  cli::EngineOptions options;
  options.model = Demo();
  options.device = "emulated";
  options.threads = 1;
  options.quiet = true;
  options.max_sequences = 2;
  options.max_batch_tokens = 16;
  options.rates = Rates(copy, compute, dense);
  return options;
}

std::vector<std::vector<base::TokenId>> Texts(std::int64_t count, std::int64_t length) {
  std::vector<std::vector<base::TokenId>> texts;
  for (std::int64_t s = 0; s < count; ++s) {
    std::vector<base::TokenId>& text = texts.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      text.push_back(static_cast<base::TokenId>(
          base::RandomBits(static_cast<std::uint64_t>(s) + 3, static_cast<std::uint64_t>(i)) % 1000));
    }
  }
  return texts;
}

api::StepPlan OneStep(const api::Engine& engine, const std::vector<base::TokenId>& tokens,
                      std::int64_t position) {
  api::StepPlan plan;
  api::PlanSpan& span = plan.spans.emplace_back();
  span.start_position = position;
  span.tokens = tokens;
  span.groups.resize(1);
  for (std::int32_t i = 0; i < engine.capacity().num_blocks.front(); ++i) {
    span.groups[0].blocks.push_back({i});
  }
  return plan;
}

// Per layer, how many experts one step needed.
struct Counter {
  std::vector<std::int64_t> distinct;
  void Observe(const api::RoutingObservation& seen) {
    distinct.push_back(static_cast<std::int64_t>(
        absl::btree_set<std::int32_t>(seen.experts.begin(), seen.experts.end()).size()));
  }
};

// One cold step over `tokens`: its seconds, and how many experts each layer needed.
struct ColdStep {
  double seconds = 0.0;
  std::vector<std::int64_t> distinct;
  api::OffloadTotals totals;
};
ColdStep RunCold(cli::EngineOptions options, const std::vector<base::TokenId>& tokens) {
  ColdStep out;
  Counter counter;
  options.routing_observer = [&counter](const api::RoutingObservation& seen) { counter.Observe(seen); };
  const absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  const absl::StatusOr<api::StepResult> result =
      (*bundle)->engine().Step(OneStep((*bundle)->engine(), tokens, 0));
  EXPECT_TRUE(result.ok()) << result.status();
  out.totals = (*bundle)->engine().offload_totals();
  out.seconds = out.totals.wall;
  out.distinct = counter.distinct;
  return out;
}

TEST(OffloadPipelineTest, MissesTakeWhatTheoryAllows) {
  for (const auto& [c, w] : {std::pair{4e-3, 1e-3}, {1e-3, 4e-3}, {2e-3, 2e-3}}) {
    for (const std::vector<base::TokenId>& tokens :
         {std::vector<base::TokenId>{17}, std::vector<base::TokenId>{17, 400, 23}}) {
      cli::EngineOptions options = Options(c, w, 0.0);
      options.policy = "naive";
      const ColdStep naive = RunCold(options, tokens);
      options.policy = "lru";
      options.expert_cache_fraction = 0.75;  // room for all that is needed, and nothing there at first
      const ColdStep pipelined = RunCold(options, tokens);
      double serial = 0.0;
      double overlapped = 0.0;
      std::uint64_t fetched = 0;
      for (const std::int64_t n : naive.distinct) {
        serial += static_cast<double>(n) * (c + w);
        overlapped += std::max(static_cast<double>(n) * c + w, c + static_cast<double>(n) * w);
        fetched += static_cast<std::uint64_t>(n);
      }
      EXPECT_NEAR(naive.seconds, serial, 1e-9);
      EXPECT_NEAR(pipelined.seconds, overlapped, 1e-9);
      for (const ColdStep* step : {&naive, &pipelined}) {
        EXPECT_EQ(step->totals.copies[base::CopyDirection::kHostToDevice].copies, fetched);
        EXPECT_EQ(step->totals.served_fetch, fetched);
      }
    }
  }
}

// Exactly three are missing: the fourth of a token's experts was put on the device at start.
class ThreeMissing final : public api::ExpertDirector {
 public:
  ThreeMissing(const routing::TierShape& shape, std::vector<std::int32_t> resident, bool keep)
      : keep_(keep), resident_(std::move(resident)) {
    maps_.resize(static_cast<std::size_t>(shape.num_layers));
    for (std::size_t l = 0; l < maps_.size(); ++l) {
      maps_[l].slot.assign(static_cast<std::size_t>(shape.num_experts), -1);
      maps_[l].slot[static_cast<std::size_t>(resident_[l])] = static_cast<std::int32_t>(l);
    }
    next_slot_ = shape.num_layers;
  }
  absl::string_view policy() const override { return "three missing"; }
  std::vector<api::FetchOrder> InitialOrders() override {
    std::vector<api::FetchOrder> orders;
    for (std::size_t l = 0; l < resident_.size(); ++l) {
      orders.push_back({{static_cast<std::int32_t>(l), resident_[l]},
                        base::Tier::kDevice,
                        static_cast<std::int32_t>(l),
                        base::CopyReason::kWarmup});
    }
    return orders;
  }
  void BeginStep(const api::StepPlan& /*plan*/) override {}
  const api::SlotMap& slots(std::int32_t layer) const override {
    return maps_[static_cast<std::size_t>(layer)];
  }
  void DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& /*lanes*/, absl::Span<api::MissDecision> decisions) override {
    EXPECT_EQ(misses.size(), 3U);
    for (api::MissDecision& decision : decisions) {
      decision.slot = keep_ ? next_slot_++ : api::kStagingSlot;
    }
  }
  void ObserveRouting(const api::RoutingObservation& /*observation*/) override {}
  void EndStep() override {}

 private:
  const bool keep_;
  const std::vector<std::int32_t> resident_;
  std::vector<api::SlotMap> maps_;
  std::int32_t next_slot_ = 0;
};

TEST(OffloadPipelineTest, ThreeMissingExperts) {
  std::vector<std::int32_t> best;  // of each layer, of the one token
  {
    cli::EngineOptions options = Options(1e-3, 1e-3, 0.0);
    options.policy = "naive";
    options.routing_observer = [&best](const api::RoutingObservation& seen) {
      best.push_back(seen.experts[0]);
    };
    const auto bundle = cli::LoadEngine(options);
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    ASSERT_TRUE((*bundle)->engine().Step(OneStep((*bundle)->engine(), {17}, 0)).ok());
  }
  for (const auto& [c, w] : {std::pair{4e-3, 1e-3}, {1e-3, 4e-3}}) {
    cli::EngineOptions options = Options(c, w, 0.0);
    options.policy = "lru";
    options.expert_cache_fraction = 1.0;
    options.make_director = [&best](const routing::TierShape& shape) {
      return std::make_unique<ThreeMissing>(shape, best, true);
    };
    const ColdStep step = RunCold(options, {17});
    const auto layers = static_cast<double>(best.size());
    // The hit is computed while the first copy is under way.
    const double first = std::max(c, w);
    EXPECT_NEAR(step.seconds, layers * std::max({3 * c + w, first + 3 * w}), 1e-9) << c << " " << w;
  }
}

// Knows what every step will need, and orders it in time.
class PerfectDirector final : public api::ExpertDirector {
 public:
  using Need = std::vector<std::vector<std::int32_t>>;  // [layer]: experts of one step
  PerfectDirector(const routing::TierShape& shape, std::vector<Need> needs)
      : layers_(static_cast<std::size_t>(shape.num_layers)) {
    maps_.resize(layers_);
    for (api::SlotMap& map : maps_) {
      map.slot.assign(static_cast<std::size_t>(shape.num_experts), -1);
    }
    slots_.resize(static_cast<std::size_t>(shape.device_slots));
    for (std::size_t s = 0; s < needs.size(); ++s) {
      for (std::size_t l = 0; l < layers_; ++l) {
        for (const std::int32_t expert : needs[s][l]) {
          needs_.push_back({s * layers_ + l, {static_cast<std::int32_t>(l), expert}});
        }
      }
    }
  }
  absl::string_view policy() const override { return "perfect"; }
  void BeginStep(const api::StepPlan& /*plan*/) override { now_ = step_++ * layers_; }
  const api::SlotMap& slots(std::int32_t layer) const override {
    return maps_[static_cast<std::size_t>(layer)];
  }
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& /*lanes*/, absl::Span<api::MissDecision> /*decisions*/) override {
    ADD_FAILURE() << "layer " << layer << ": " << misses.size() << " misses, " << misses[0].key.expert;
  }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& /*lanes*/) override {
    if (layer >= 0) {
      now_ = (step_ - 1) * layers_ + static_cast<std::size_t>(layer);
    }
    orders_.clear();
    for (; next_ < needs_.size(); ++next_) {
      const auto& [when, key] = needs_[next_];
      if (when >= now_ + layers_) {
        break;  // an order is for the next time that its layer runs
      }
      std::int32_t& where =
          maps_[static_cast<std::size_t>(key.layer)].slot[static_cast<std::size_t>(key.expert)];
      if (where >= 0) {
        slots_[static_cast<std::size_t>(where)].until = when;
        continue;
      }
      // A place whose expert is not needed again before this one. At -1 nothing of this step has run.
      const auto free = std::find_if(slots_.begin(), slots_.end(),
                                     [&](const Slot& slot) { return !slot.used || slot.until < now_; });
      if (free == slots_.end()) {
        break;
      }
      if (free->used) {
        maps_[static_cast<std::size_t>(free->key.layer)].slot[static_cast<std::size_t>(free->key.expert)] =
            -1;
      }
      *free = {true, key, when};
      where = static_cast<std::int32_t>(free - slots_.begin());
      orders_.push_back({key, base::Tier::kDevice, where, base::CopyReason::kPrefetch});
    }
    return orders_;
  }
  void ObserveRouting(const api::RoutingObservation& /*observation*/) override {}
  void OnVacated(base::Tier /*tier*/, std::int32_t slot, base::ExpertKey key, bool /*usable*/) override {
    ADD_FAILURE() << "slot " << slot << " lost expert " << key.expert << " of layer " << key.layer;
  }
  void EndStep() override {}

 private:
  struct Slot {
    bool used = false;
    base::ExpertKey key;
    std::size_t until = 0;  // the last layer, counted from the first step, that needs it
  };
  const std::size_t layers_;
  std::vector<api::SlotMap> maps_;
  std::vector<Slot> slots_;
  std::vector<std::pair<std::size_t, base::ExpertKey>> needs_;
  std::size_t next_ = 0;
  std::size_t now_ = 0;
  std::size_t step_ = 0;
  std::vector<api::FetchOrder> orders_;
};

TEST(OffloadPipelineTest, PerfectKnowledgeLeavesLittleToWaitFor) {
  constexpr std::int64_t kSteps = 24;
  const std::vector<std::vector<base::TokenId>> texts = Texts(3, 64);
  std::vector<PerfectDirector::Need> needs;
  const auto run_steps = [&](cli::EngineOptions options) {
    const auto bundle = cli::LoadEngine(options);
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    std::vector<api::OffloadTotals> totals;
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const auto result =
          (*bundle)->engine().Step(OneStep((*bundle)->engine(), {texts[0][static_cast<std::size_t>(i)]}, i));
      EXPECT_TRUE(result.ok()) << result.status();
      totals.push_back((*bundle)->engine().offload_totals());
    }
    return totals;
  };
  {
    cli::EngineOptions options = Options(1e-3, 1e-3, 0.0);
    options.policy = "naive";
    options.routing_observer = [&needs](const api::RoutingObservation& seen) {
      if (seen.layer == 0) {
        needs.emplace_back();
      }
      needs.back().emplace_back(seen.experts.begin(), seen.experts.end());
    };
    run_steps(options);
  }
  for (const double compute : {1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3}) {
    for (const double dense : {0.0, 1e-4, 5e-4}) {
      cli::EngineOptions options = Options(1e-3, compute, dense);
      options.policy = "lru";
      options.expert_cache_fraction = 0.25;
      options.make_director = [&needs](const routing::TierShape& shape) {
        return std::make_unique<PerfectDirector>(shape, needs);
      };
      const std::vector<api::OffloadTotals> totals = run_steps(options);
      for (std::size_t i = 1; i < totals.size(); ++i) {
        const api::OffloadTotals step = cli::Difference(totals[i], totals[i - 1]);
        const double transfer = step.copy_busy[base::CopyDirection::kHostToDevice];
        EXPECT_LE(step.wall, 1.15 * std::max(transfer, step.compute))
            << "step " << i << ", compute " << compute << ", dense " << dense << ": link " << transfer
            << ", device " << step.compute;
      }
    }
  }
}

}  // namespace
}  // namespace comoe
