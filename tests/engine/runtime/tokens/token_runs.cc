#include "tests/engine/runtime/tokens/token_runs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/verify.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda/cuda_device.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"

namespace comoe::testing {
namespace {

constexpr std::int64_t kShortestPrompt = 5;
constexpr std::uint64_t kSeed = 20;
// Rows of a step of RunFree besides decodes: prompts come in pieces.
constexpr std::int64_t kChunk = 11;

api::SamplingParams SamplingOf(bool greedy, std::int64_t sequence) {
  api::SamplingParams sampling;
  sampling.temperature = greedy ? 0.0F : 0.8F;
  if (!greedy) {
    sampling.top_p = 0.95F;
    sampling.top_k = 50;
    sampling.seed = kSeed + static_cast<std::uint64_t>(sequence);
  }
  return sampling;
}

}  // namespace

absl::StatusOr<std::unique_ptr<cli::EngineBundle>> Load(const CheckOptions& options, const Setting& setting) {
  cli::EngineOptions engine;
  engine.model = options.model;
  engine.device = options.device == "fake" ? "cuda" : options.device;
  engine.cuda_plugin = options.plugin;
  engine.activations = setting.activations;
  engine.threads = static_cast<int>(options.threads);
  engine.quiet = true;
  engine.max_sequences = kMaxSequences;
  engine.max_batch_tokens = kMaxRows;
  if (options.device == "fake") {
    engine.kernels = "ref";  // of the host lane too
    engine.device_kernels = &FakeCudaKernels();
    engine.make_device = [] { return device::MakeCudaDevice(FakeCudaPlugin(), {}); };
  }
  if (options.device != "cpu") {
    engine.policy = setting.policy.substr(0, setting.policy.find(' '));
    engine.hub_mode = setting.policy == "hub throughput" ? "throughput" : "latency";
    if (engine.policy != "resident") {
      engine.expert_cache_fraction = setting.capacity;
      engine.host_lane = setting.lane;
    }
  }
  return cli::LoadEngine(engine);
}

absl::StatusOr<std::vector<std::vector<base::TokenId>>> Prompts(const CheckOptions& options,
                                                                const api::ModelInfo& info,
                                                                std::int64_t count, std::int64_t most) {
  std::vector<std::vector<base::TokenId>> texts;
  if (const std::string file = options.model + "/golden_nll.json"; cli::IsThere(file)) {
    COMOE_ASSIGN_OR_RETURN(cli::NllFile golden, cli::ReadNllFile(file, info.vocab_size));
    texts = std::move(golden.ids);
  }
  std::vector<std::vector<base::TokenId>> prompts;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t range = std::max<std::int64_t>(1, most - kShortestPrompt + 1);
    const std::int64_t length = i == 0 ? most : std::min(most, kShortestPrompt + i * 7 % range);
    std::vector<base::TokenId>& prompt = prompts.emplace_back();
    for (std::int64_t t = 0; t < length; ++t) {
      const auto counter = static_cast<std::uint64_t>(t);
      if (!texts.empty()) {
        // Another place of another text for each.
        const std::vector<base::TokenId>& text = texts[static_cast<std::size_t>(i) % texts.size()];
        prompt.push_back(text[static_cast<std::size_t>(i * 3 + t) % text.size()]);
      } else {
        prompt.push_back(
            static_cast<base::TokenId>(base::RandomBits(kSeed + static_cast<std::uint64_t>(i), counter) %
                                       static_cast<std::uint64_t>(info.vocab_size)));
      }
    }
  }
  return prompts;
}

Stepper::Stepper(api::Engine& engine, std::int64_t num_sequences)
    : engine_(engine), num_sequences_(num_sequences) {}

absl::StatusOr<std::vector<api::SpanResult>> Stepper::Step(const std::vector<Piece>& pieces) {
  api::StepPlan plan;
  plan.step = {next_step_++};
  for (const Piece& piece : pieces) {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = base::SequenceId{static_cast<std::uint64_t>(piece.sequence) + 1};
    span.start_position = piece.position;
    span.tokens = piece.tokens;
    span.logits = piece.logits;
    span.return_logits = piece.logits != api::LogitsMode::kNone;
    span.sample = piece.sample;
    for (const std::int32_t num_blocks : engine_.capacity().num_blocks) {
      const auto share = static_cast<std::int32_t>(num_blocks / num_sequences_);
      api::GroupState& group = span.groups.emplace_back();
      for (std::int32_t i = 0; i < share; ++i) {
        group.blocks.push_back({static_cast<std::int32_t>(piece.sequence) * share + i});
      }
    }
  }
  COMOE_ASSIGN_OR_RETURN(api::StepResult result, engine_.Step(plan));
  for (const api::SpanResult& span : result.spans) {
    COMOE_RETURN_IF_ERROR(span.status);
  }
  return std::move(result.spans);
}

absl::StatusOr<Drawn> RunFree(api::Engine& engine, const std::vector<std::vector<base::TokenId>>& prompts,
                              std::int64_t decodes, int parity) {
  const auto batch = static_cast<std::int64_t>(prompts.size());
  Stepper stepper(engine, kMaxSequences);
  Drawn drawn;
  drawn.tokens.resize(prompts.size());
  drawn.logits.resize(prompts.size());
  std::vector<std::int64_t> done(prompts.size(), 0);  // positions in the state
  const auto unfinished = [&](std::size_t s) {
    return static_cast<std::int64_t>(drawn.tokens[s].size()) < decodes;
  };
  std::int64_t filling = 0;  // the sequence whose prompt comes in
  while (true) {
    std::vector<Piece> pieces;
    for (std::int64_t i = 0; i <= std::min(filling, batch - 1); ++i) {
      const auto s = static_cast<std::size_t>(i);
      if (!unfinished(s)) {
        continue;
      }
      Piece piece{i, done[s], {}, api::LogitsMode::kLast, SamplingOf((i + parity) % 2 == 0, i)};
      if (i < filling) {
        piece.tokens = {drawn.tokens[s].back()};
      } else {
        const auto left = static_cast<std::int64_t>(prompts[s].size()) - done[s];
        const auto begin = prompts[s].begin() + done[s];
        piece.tokens.assign(begin, begin + std::min(left, kChunk));
        if (left > kChunk) {
          piece.logits = api::LogitsMode::kNone;
          piece.sample.reset();
        }
      }
      pieces.push_back(std::move(piece));
    }
    if (pieces.empty()) {
      return drawn;
    }
    COMOE_ASSIGN_OR_RETURN(std::vector<api::SpanResult> results, stepper.Step(pieces));
    const bool filled =
        filling < batch && pieces.back().sequence == filling && pieces.back().sample.has_value();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto s = static_cast<std::size_t>(pieces[i].sequence);
      done[s] += static_cast<std::int64_t>(pieces[i].tokens.size());
      if (results[i].token.has_value()) {
        drawn.tokens[s].push_back(*results[i].token);
        drawn.logits[s].insert(drawn.logits[s].end(), results[i].logits.begin(), results[i].logits.end());
      }
    }
    filling += filled ? 1 : 0;
  }
}

void Difference::Add(const Difference& other) {
  tokens += other.tokens;
  other_tokens += other.other_tokens;
  rows += other.rows;
  other_rows += other.other_rows;
  largest = std::max(largest, other.largest);
}

void Difference::AddRow(absl::Span<const float> want, absl::Span<const float> got) {
  ++rows;
  ++tokens;
  if (want.size() == got.size() && std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0) {
    return;
  }
  ++other_rows;
  for (std::size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i]) - static_cast<double>(got[i])));
  }
  const auto best = [](absl::Span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  other_tokens += best(want) != best(got) ? 1 : 0;
}

nlohmann::json Difference::Json() const {
  return {{"tokens", tokens},
          {"other_tokens", other_tokens},
          {"rows", rows},
          {"other_rows", other_rows},
          {"largest_difference", largest}};
}

Difference Compare(const Drawn& want, const Drawn& got, std::int32_t vocab) {
  const auto width = static_cast<std::size_t>(vocab);
  Difference difference;
  for (std::size_t s = 0; s < want.tokens.size(); ++s) {
    const std::size_t draws = want.tokens[s].size();
    difference.tokens += static_cast<std::int64_t>(draws);
    bool same_history = true;
    for (std::size_t i = 0; i < draws; ++i) {
      if (same_history) {
        Difference row;
        row.AddRow(absl::MakeConstSpan(want.logits[s]).subspan(i * width, width),
                   absl::MakeConstSpan(got.logits[s]).subspan(i * width, width));
        row.tokens = row.other_tokens = 0;  // what was drawn counts
        difference.Add(row);
      }
      const bool other = got.tokens[s].size() != draws || got.tokens[s][i] != want.tokens[s][i];
      difference.other_tokens += other ? 1 : 0;
      same_history = same_history && !other;
    }
  }
  return difference;
}

}  // namespace comoe::testing
