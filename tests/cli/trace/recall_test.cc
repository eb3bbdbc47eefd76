// How well the hub's predictor names a row's experts one layer ahead at batch 1, on routing that our engine
// computes, with the scores of the next layer's gate as the hub gets them. It sees the first half of the
// texts unjudged. Of the others every forecast is made before its truth is shown, so that no row is judged
// that was learnt from. The larger model is not part of the repository: without it the test says so and is
// skipped.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "gtest/gtest.h"
#include "scheduler/routing/forwarding_director.h"
#include "scheduler/routing/mix_predictor.h"
#include "scheduler/routing/predictor.h"
#include "tests/scheduler/routing/study_trace.h"

namespace comoe {
namespace {

// What a text's rows chose, and what the gate one layer before said of each expert.
struct Recorded {
  std::vector<std::vector<std::int32_t>> experts;  // [layer][T, k]
  std::vector<std::vector<float>> scores;          // [layer][T, E], of that layer
};

class Recorder final : public routing::ForwardingDirector {
 public:
  Recorder(std::unique_ptr<api::ExpertDirector> inner, Recorded* out)
      : ForwardingDirector(std::move(inner)), out_(*out) {}
  std::int32_t lookahead() const override { return 1; }
  void ObserveRouting(const api::RoutingObservation& seen) override {
    out_.experts[static_cast<std::size_t>(seen.layer)].assign(seen.experts.begin(), seen.experts.end());
    ForwardingDirector::ObserveRouting(seen);
  }
  void ObserveLookahead(const api::LookaheadObservation& seen) override {
    out_.scores[static_cast<std::size_t>(seen.target)].assign(seen.logits.begin(), seen.logits.end());
  }

 private:
  Recorded& out_;
};

absl::Status RunText(api::Engine& engine, const std::vector<base::TokenId>& text) {
  api::StepPlan plan;
  api::PlanSpan& span = plan.spans.emplace_back();
  span.tokens = text;
  for (const std::int32_t num_blocks : engine.capacity().num_blocks) {
    api::GroupState& group = span.groups.emplace_back();
    for (std::int32_t block = 0; block < num_blocks; ++block) {
      group.blocks.push_back({block});
    }
  }
  return engine.Step(plan).status();
}

struct Score {
  std::int64_t routed = 0;
  std::int64_t by_predictor = 0;
  std::int64_t by_gate = 0;  // the scores' own best, unlearnt
};

std::int64_t CountFound(absl::Span<const std::int32_t> named, absl::Span<const std::int32_t> routed) {
  return std::count_if(routed.begin(), routed.end(), [named](std::int32_t expert) {
    return std::find(named.begin(), named.end(), expert) != named.end();
  });
}

// Shows the predictor a text, a row a step.
void Replay(const Recorded& recorded, const std::vector<base::TokenId>& text, const routing::TierShape& shape,
            bool judged, routing::MixPredictor* predictor, Score* score) {
  const auto k = static_cast<std::size_t>(shape.experts_per_token);
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  std::vector<float> probabilities(num_experts);
  std::vector<std::int32_t> named;
  for (std::size_t t = 0; t < text.size(); ++t) {
    predictor->BeginStep({&text[t], 1});
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      predictor->Observe(layer, absl::MakeConstSpan(recorded.experts[l]).subspan(t * k, k));
      if (layer + 1 == shape.num_layers) {
        continue;
      }
      const absl::Span<const float> scores =
          absl::MakeConstSpan(recorded.scores[l + 1]).subspan(t * num_experts, num_experts);
      predictor->ObserveLookahead(layer, layer + 1, scores);
      predictor->Forecast(layer + 1, absl::MakeSpan(probabilities));
      if (!judged) {
        continue;
      }
      const absl::Span<const std::int32_t> routed =
          absl::MakeConstSpan(recorded.experts[l + 1]).subspan(t * k, k);
      score->routed += static_cast<std::int64_t>(k);
      routing::MostLikely(probabilities, 2 * shape.experts_per_token, &named);
      score->by_predictor += CountFound(named, routed);
      const float lowest = *std::min_element(scores.begin(), scores.end());
      std::transform(scores.begin(), scores.end(), probabilities.begin(),
                     [lowest](float s) { return s - lowest + 1.0F; });
      routing::MostLikely(probabilities, 2 * shape.experts_per_token, &named);
      score->by_gate += CountFound(named, routed);
    }
  }
}

Score Judge(const std::string& model, absl::Span<const std::int32_t> order) {
  Recorded recorded;
  cli::EngineOptions options;
  options.model = model;
  options.quiet = true;
  options.wrap_director = [&recorded](std::unique_ptr<api::ExpertDirector> inner) {
    return std::make_unique<Recorder>(std::move(inner), &recorded);
  };
  const absl::StatusOr<std::unique_ptr<cli::EngineBundle>> bundle = cli::LoadEngine(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status();
  api::Engine& engine = (*bundle)->engine();
  const api::ModelInfo& info = engine.model_info();
  routing::TierShape shape;
  shape.num_layers = info.num_layers;
  for (std::int32_t layer = 0; layer < info.num_layers; ++layer) {
    shape.moe_layers.push_back(layer);
  }
  shape.num_experts = info.num_experts;
  shape.experts_per_token = info.num_experts_per_token;
  recorded.experts.resize(static_cast<std::size_t>(info.num_layers));
  recorded.scores.resize(recorded.experts.size());
  const absl::StatusOr<std::vector<std::vector<base::TokenId>>> texts =
      cli::ReadForcedIds(model + "/routing_trace.npz", info.vocab_size);
  EXPECT_TRUE(texts.ok()) << texts.status();
  Score score;
  routing::MixPredictor predictor(shape, routing::MixOptions{});
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<base::TokenId>& text = (*texts)[static_cast<std::size_t>(order[i])];
    const absl::Status status = RunText(engine, text);
    EXPECT_TRUE(status.ok()) << status;
    Replay(recorded, text, shape, i >= order.size() / 2, &predictor, &score);
  }
  return score;
}

TEST(RecallTest, OfSetsOf2kOneLayerAheadAtBatch1) {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  const std::string model = absl::StrCat(root != nullptr ? root : ".", "/../shared/models/moe-64x2");
  if (::access((model + "/config.json").c_str(), R_OK) != 0) {
    GTEST_SKIP() << "no model at ../shared/models/moe-64x2: nothing was judged";
  }
  const Score score = Judge(model, routing::kStudyOrder);
  const double recall = static_cast<double>(score.by_predictor) / static_cast<double>(score.routed);
  const double gate = static_cast<double>(score.by_gate) / static_cast<double>(score.routed);
  std::printf("recall of 2k = 4 of 64, one layer ahead, %lld routed slots: predictor %.4f, gate alone %.4f\n",
              static_cast<long long>(score.routed), recall, gate);
  EXPECT_GE(recall, 0.93);
  EXPECT_GT(recall, gate);
}

}  // namespace
}  // namespace comoe
