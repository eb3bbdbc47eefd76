#include "scheduler/routing/hub_state.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"

namespace comoe::routing {
namespace {

constexpr std::uint64_t kMagic = 0x4255'4845'4f4d'4f43;  // "COMOEHUB"
constexpr std::uint64_t kVersion = 1;
// magic, version, checkpoint, layers, experts, k, device experts, predictor bytes; a checksum ends the file.
constexpr std::size_t kHeaderWords = 8;

std::uint64_t Checksum(absl::Span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0x9e3779b97f4a7c15ULL + bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    sum = base::MixBits(sum ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  return sum;
}

void Append(const void* data, std::size_t size, std::vector<std::uint8_t>* bytes) {
  const std::size_t at = bytes->size();
  bytes->resize(at + size);
  if (size > 0) {
    std::memcpy(bytes->data() + at, data, size);
  }
}

}  // namespace

std::vector<std::uint8_t> EncodeHubState(const TierShape& shape, std::uint64_t checkpoint,
                                         const HubState& state) {
  const std::uint64_t header[kHeaderWords] = {kMagic,
                                              kVersion,
                                              checkpoint,
                                              static_cast<std::uint64_t>(shape.num_layers),
                                              static_cast<std::uint64_t>(shape.num_experts),
                                              static_cast<std::uint64_t>(shape.experts_per_token),
                                              state.on_device.size(),
                                              state.predictor.size()};
  std::vector<std::uint8_t> bytes;
  Append(header, sizeof header, &bytes);
  Append(state.counts.data(), state.counts.size() * sizeof(float), &bytes);
  for (const base::ExpertKey key : state.on_device) {
    const auto index = static_cast<std::uint32_t>(shape.Index(key));
    Append(&index, sizeof index, &bytes);
  }
  Append(state.predictor.data(), state.predictor.size(), &bytes);
  const std::uint64_t sum = Checksum(bytes);
  Append(&sum, sizeof sum, &bytes);
  return bytes;
}

absl::StatusOr<HubState> DecodeHubState(const TierShape& shape, std::uint64_t checkpoint,
                                        absl::Span<const std::uint8_t> bytes) {
  std::uint64_t header[kHeaderWords] = {};
  if (bytes.size() < sizeof header + sizeof(std::uint64_t)) {
    return absl::InvalidArgumentError(absl::StrCat("hub state: ", bytes.size(), " bytes hold none"));
  }
  std::memcpy(header, bytes.data(), sizeof header);
  if (header[0] != kMagic || header[1] != kVersion) {
    return absl::InvalidArgumentError("hub state: not one, or of another version: delete the file");
  }
  if (header[2] != checkpoint || header[3] != static_cast<std::uint64_t>(shape.num_layers) ||
      header[4] != static_cast<std::uint64_t>(shape.num_experts) ||
      header[5] != static_cast<std::uint64_t>(shape.experts_per_token)) {
    return absl::FailedPreconditionError("hub state: it was learnt from another model: give another file");
  }
  const std::size_t payload = bytes.size() - sizeof header - sizeof(std::uint64_t);
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  const std::size_t counts_bytes = shape.num_keys() * sizeof(float);
  // Both sizes are bounded before they are added up.
  if (header[6] > shape.num_keys() || header[7] > payload ||
      counts_bytes + header[6] * sizeof(std::uint32_t) + header[7] != payload ||
      sum != Checksum(bytes.first(bytes.size() - sizeof sum))) {
    return absl::DataLossError("hub state: cut short or changed since it was written: delete the file");
  }
  HubState state;
  bytes.remove_prefix(sizeof header);
  state.counts.resize(shape.num_keys());
  std::memcpy(state.counts.data(), bytes.data(), counts_bytes);
  bytes.remove_prefix(counts_bytes);
  for (std::uint64_t i = 0; i < header[6]; ++i) {
    std::uint32_t index = 0;
    std::memcpy(&index, bytes.data(), sizeof index);
    bytes.remove_prefix(sizeof index);
    const base::ExpertKey key{
        static_cast<std::int32_t>(index / static_cast<std::uint32_t>(shape.num_experts)),
        static_cast<std::int32_t>(index % static_cast<std::uint32_t>(shape.num_experts))};
    if (!std::binary_search(shape.moe_layers.begin(), shape.moe_layers.end(), key.layer)) {
      return absl::DataLossError("hub state: names an expert that the model does not have");
    }
    state.on_device.push_back(key);
  }
  const bool sane = std::all_of(state.counts.begin(), state.counts.end(),
                                [](float count) { return std::isfinite(count) && count >= 0.0F; });
  if (!sane) {
    return absl::DataLossError("hub state: counts that are none");
  }
  state.predictor.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header[7]));
  return state;
}

}  // namespace comoe::routing
