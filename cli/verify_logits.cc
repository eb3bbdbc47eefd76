#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/json_file.h"
#include "cli/verify.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/tensor_source.h"

namespace comoe::cli {
namespace {

constexpr double kLogitsTolerance = 1e-4;

// ||ours - reference|| / ||reference|| over all rows of a prompt, and the row that is worst by itself.
struct Deviation {
  double squared_difference = 0.0;
  double squared_reference = 0.0;

  double relative() const { return std::sqrt(squared_difference / squared_reference); }
};

struct GoldenPrompt {
  std::vector<base::TokenId> prompt;
  std::vector<base::TokenId> greedy;
};

absl::StatusOr<std::vector<GoldenPrompt>> ReadPrompts(const std::string& path, std::int32_t vocab_size) {
  COMOE_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
  if (!document.is_object() || !document.contains("prompts") || !document["prompts"].is_array() ||
      document["prompts"].empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": prompts is missing or empty"));
  }
  std::vector<GoldenPrompt> prompts;
  for (const nlohmann::json& item : document["prompts"]) {
    const std::string where = absl::StrCat(path, ": prompts[", prompts.size(), "]");
    if (!item.is_object() || !item.contains("prompt_ids") || !item.contains("greedy_ids")) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has no prompt_ids or greedy_ids"));
    }
    GoldenPrompt prompt;
    COMOE_ASSIGN_OR_RETURN(prompt.prompt, TokenIds(item["prompt_ids"], vocab_size, where + ".prompt_ids"));
    COMOE_ASSIGN_OR_RETURN(prompt.greedy, TokenIds(item["greedy_ids"], vocab_size, where + ".greedy_ids"));
    if (prompt.prompt.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ".prompt_ids is empty"));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

absl::StatusOr<Deviation> CompareLogits(const VerifyContext& context, const GoldenPrompt& prompt,
                                        const checkpoint::TensorSource& golden, const std::string& name) {
  const checkpoint::TensorInfo* info = golden.Find(name);
  std::vector<base::TokenId> tokens = prompt.prompt;
  tokens.insert(tokens.end(), prompt.greedy.begin(), prompt.greedy.end());
  const auto vocab = static_cast<std::int64_t>(context.engine.model_info().vocab_size);
  if (info == nullptr || info->dtype != tensor::DType::kF32 ||
      info->shape != std::vector<std::int64_t>{static_cast<std::int64_t>(tokens.size()), vocab}) {
    return absl::InvalidArgumentError(absl::StrCat("golden.safetensors: ", name, " is missing or not F32 [",
                                                   tokens.size(), ", ", vocab, "]"));
  }
  COMOE_ASSIGN_OR_RETURN(const checkpoint::TensorData data, golden.Read(*info));
  Deviation deviation;
  context.sequence.Reset();
  COMOE_RETURN_IF_ERROR(
      context.sequence.AppendWithLogits(tokens, [&](std::int64_t position, absl::Span<const float> logits) {
        const auto first = static_cast<std::size_t>(position * vocab);
        for (std::size_t i = 0; i < logits.size(); ++i) {
          const double reference = tensor::LoadElement(data.bytes.data(), tensor::DType::kF32, first + i);
          const double difference = static_cast<double>(logits[i]) - reference;
          deviation.squared_difference += difference * difference;
          deviation.squared_reference += reference * reference;
        }
      }));
  return deviation;
}

// Tokens drawn one by one from the prompt, decoded through the KV cache.
absl::StatusOr<bool> GreedyMatches(const VerifyContext& context, const GoldenPrompt& prompt) {
  api::SamplingParams greedy;
  greedy.temperature = 0.0F;
  context.sequence.Reset();
  std::vector<base::TokenId> next = prompt.prompt;
  for (const base::TokenId expected : prompt.greedy) {
    COMOE_ASSIGN_OR_RETURN(const api::SpanResult result, context.sequence.AppendAndSample(next, greedy));
    if (result.token != expected) {
      return false;
    }
    next = {expected};
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<Check>> VerifyLogits(const VerifyContext& context) {
  COMOE_ASSIGN_OR_RETURN(
      const std::vector<GoldenPrompt> prompts,
      ReadPrompts(context.directory + "/golden.json", context.engine.model_info().vocab_size));
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::TensorSource> golden,
                         checkpoint::OpenSafetensorsFile(context.directory + "/golden.safetensors"));
  double worst = 0.0;
  std::size_t worst_prompt = 0;
  std::size_t greedy_equal = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    COMOE_ASSIGN_OR_RETURN(const Deviation deviation,
                           CompareLogits(context, prompts[i], *golden, absl::StrCat("logits.", i)));
    // NaN is worse than anything, and stays.
    if (!std::isnan(worst) && !(deviation.relative() <= worst)) {
      worst = deviation.relative();
      worst_prompt = i;
    }
    COMOE_ASSIGN_OR_RETURN(const bool equal, GreedyMatches(context, prompts[i]));
    greedy_equal += equal ? 1 : 0;
  }
  return std::vector<Check>{
      {"golden.json logits", worst < kLogitsTolerance,
       absl::StrFormat("||difference|| / ||reference|| at most %.2e (prompt %d), bound %.0e, %d prompts",
                       worst, worst_prompt, kLogitsTolerance, prompts.size())},
      {"golden.json greedy", greedy_equal == prompts.size(),
       absl::StrCat(greedy_equal, " of ", prompts.size(), " continuations equal")}};
}

}  // namespace comoe::cli
