#include "tests/scheduler/routing/study_trace.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/numpy_file.h"
#include "gtest/gtest.h"

namespace comoe::routing {

std::optional<Trace> LoadStudyTrace() {
  const char* source = std::getenv("COMOE_SOURCE_DIR");
  const std::string path =
      std::string(source == nullptr ? "." : source) + "/../shared/models/moe-64x2/routing_trace.npz";
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  const auto arrays = checkpoint::ReadNpz(path, std::uint64_t{1} << 30);
  if (!arrays.ok()) {
    ADD_FAILURE() << arrays.status();
    return std::nullopt;
  }
  constexpr std::int64_t kSequences = 96, kTokens = 512, kLayers = 12, kTopK = 2, kNamed = 4;
  Trace trace;
  TraceHeader& header = trace.header;
  header.vocab_size = 8192;
  header.num_layers = kLayers;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    header.moe_layers.push_back(layer);
  }
  header.num_experts = 64;
  header.experts_per_token = kTopK;
  header.lookahead = 3;
  header.lookahead_width = kNamed;
  const checkpoint::NumpyArray& ids = arrays->at("ids");
  const checkpoint::NumpyArray& experts = arrays->at("experts");
  for (std::int64_t s = 0; s < kSequences; ++s) {
    TraceSequence& sequence = trace.sequences.emplace_back();
    sequence.id = static_cast<std::uint64_t>(s);
    for (std::int64_t t = s * kTokens; t < (s + 1) * kTokens; ++t) {
      sequence.tokens.push_back(static_cast<base::TokenId>(ids.IntegerAt(t)));
    }
    for (std::int64_t i = s * kTokens * kLayers * kTopK; i < (s + 1) * kTokens * kLayers * kTopK; ++i) {
      sequence.experts.push_back(static_cast<std::uint16_t>(experts.IntegerAt(i)));
    }
    for (std::int32_t distance = 1; distance <= header.lookahead; ++distance) {
      const checkpoint::NumpyArray& named = arrays->at(absl::StrCat("lookahead", distance));
      std::vector<std::uint16_t>& ahead = sequence.ahead.emplace_back();
      for (std::int64_t t = s * kTokens; t < (s + 1) * kTokens; ++t) {
        for (std::int64_t i = t * kLayers * kNamed; i < (t + 1) * kLayers * kNamed; ++i) {
          const bool named_any = i / kNamed % kLayers >= distance;  // the first layers have none before them
          ahead.push_back(named_any ? static_cast<std::uint16_t>(named.IntegerAt(i)) : kNoExpert);
        }
      }
    }
  }
  return trace;
}

}  // namespace comoe::routing
