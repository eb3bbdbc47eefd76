#include "scheduler/routing/expert_classifier.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/byte_format.h"

namespace comoe::routing {
namespace {

constexpr absl::string_view kMagic = "COMOECLS";
constexpr std::uint32_t kVersion = 1;
constexpr std::int32_t kWindowRows = 100;
constexpr std::int32_t kMaxDistances = 8;
// So many uses of what rows in general need are added to a token's counts.
constexpr float kPriorRows = 2.0F;
constexpr float kLeast = 1e-3F;  // of a share, before its logarithm is taken

float Sigmoid(float z) { return 1.0F / (1.0F + std::exp(-z)); }

}  // namespace

ExpertClassifier::ExpertClassifier(const TierShape& shape, std::int32_t distances)
    : shape_(shape),
      distances_(distances),
      num_experts_(static_cast<std::size_t>(shape.num_experts)),
      k_(static_cast<std::size_t>(shape.experts_per_token)),
      index_(static_cast<std::size_t>(shape.num_layers), -1),
      weights_(shape.moe_layers.size() * static_cast<std::size_t>(distances)),
      frequency_(shape.moe_layers.size() * num_experts_, 0.0F),
      window_(shape, kWindowRows),
      now_(shape.moe_layers.size() * std::size_t{kMaxForecastRows} * k_, -1),
      token_log_(num_experts_),
      window_log_(num_experts_),
      logits_(num_experts_),
      window_share_(num_experts_) {
  for (std::size_t i = 0; i < shape.moe_layers.size(); ++i) {
    index_[static_cast<std::size_t>(shape.moe_layers[i])] = static_cast<std::int32_t>(i);
  }
}

absl::Status ExpertClassifier::CheckSize(std::size_t num_tokens) const {
  const std::uint64_t weights =
      weights_.size() * (3 * num_experts_ * num_experts_ + num_experts_ + 2) * sizeof(float);
  const std::uint64_t counts = num_tokens * frequency_.size() * sizeof(std::uint16_t);
  if (weights + counts > kMaxTableBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a classifier for ", shape_.moe_layers.size(), " layers of ", num_experts_,
                     " experts and ", num_tokens, " tokens takes ", base::FormatBytes(weights + counts),
                     ", more than the ", base::FormatBytes(kMaxTableBytes), " supported"));
  }
  return absl::OkStatus();
}

void ExpertClassifier::BeginStep(absl::Span<const base::TokenId> tokens) {
  num_rows_before_ = num_rows_;
  tokens_.assign(tokens.begin(), tokens.end());
  num_rows_ = tokens.size();
  last_index_ = -1;
}

void ExpertClassifier::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  const std::int32_t index = index_[static_cast<std::size_t>(layer)];
  if (index < 0 || experts.size() != num_rows_ * k_ || num_rows_ > std::size_t{kMaxForecastRows}) {
    return;
  }
  std::copy(experts.begin(), experts.end(),
            now_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(index) *
                                                       std::size_t{kMaxForecastRows} * k_));
  last_index_ = index;
  window_.Observe(layer, experts);
}

void ExpertClassifier::Gather(std::size_t t, std::size_t index, std::size_t distance,
                              absl::Span<const std::int32_t> own) {
  rows_of_weights_.clear();
  const auto add = [&](std::size_t matrix, std::size_t layer) {
    for (std::size_t r = 0; r < k_; ++r) {
      const std::int32_t expert = now_[(layer * std::size_t{kMaxForecastRows} + t) * k_ + r];
      if (expert >= 0) {
        rows_of_weights_.push_back((matrix * num_experts_ + static_cast<std::size_t>(expert)) * num_experts_);
      }
    }
  };
  if (index >= distance) {
    add(0, index - distance);
  }
  if (index >= distance + 1) {
    add(1, index - distance - 1);
  }
  if (t < num_rows_before_) {
    add(2, index);  // not overwritten yet: this layer is still to come
  }
  const float* frequency = &frequency_[index * num_experts_];
  const auto found = place_of_.find(tokens_[t]);
  const std::uint16_t* counts =
      found == place_of_.end() ? nullptr
                               : &counts_[(found->second * shape_.moe_layers.size() + index) * num_experts_];
  const float own_rows = own.empty() ? 0.0F : 1.0F;
  const float rows = counts == nullptr ? 0.0F : static_cast<float>(seen_[found->second]) - own_rows;
  for (std::size_t e = 0; e < num_experts_; ++e) {
    const float count = counts == nullptr ? 0.0F : static_cast<float>(counts[e]);
    token_log_[e] = (count + kPriorRows * frequency[e]) / (rows + kPriorRows);
  }
  for (const std::int32_t expert : own) {
    token_log_[static_cast<std::size_t>(expert)] -= counts == nullptr ? 0.0F : 1.0F / (rows + kPriorRows);
  }
  window_.Forecast(shape_.moe_layers[index], absl::MakeSpan(window_share_));
  for (std::size_t e = 0; e < num_experts_; ++e) {
    token_log_[e] = std::log(std::max(token_log_[e], kLeast));
    window_log_[e] = std::log(window_share_[e] + 0.01F);
  }
}

void ExpertClassifier::Score(const Weights& weights) {
  const float* values = weights.values.data();
  const float* bias = values + 3 * num_experts_ * num_experts_;
  const float a = bias[num_experts_];
  const float b = bias[num_experts_ + 1];
  for (std::size_t e = 0; e < num_experts_; ++e) {
    logits_[e] = bias[e] + a * token_log_[e] + b * window_log_[e];
  }
  for (const std::size_t row : rows_of_weights_) {
    for (std::size_t e = 0; e < num_experts_; ++e) {
      logits_[e] += values[row + e];
    }
  }
}

void ExpertClassifier::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  std::fill(probabilities.begin(), probabilities.end(), 0.0F);
  const std::int32_t index = index_[static_cast<std::size_t>(target)];
  const std::int32_t distance = index - last_index_;
  if (index < 0 || last_index_ < 0 || distance < 1 || distance > distances_) {
    return;
  }
  const auto i = static_cast<std::size_t>(index);
  for (std::size_t t = 0; t < num_rows_; ++t) {
    Gather(t, i, static_cast<std::size_t>(distance), {});
    Score(WeightsOf(i, static_cast<std::size_t>(distance)));
    for (std::size_t e = 0; e < num_experts_; ++e) {
      probabilities[t * num_experts_ + e] = Sigmoid(logits_[e]);
    }
  }
}

void ExpertClassifier::Learn(std::size_t index, std::size_t distance, absl::Span<const std::int32_t> experts,
                             const FitOptions& options) {
  Weights& weights = WeightsOf(index, distance);
  Gather(0, index, distance, experts);
  Score(weights);
  const auto rate = static_cast<float>(options.learning_rate);
  const auto decay = static_cast<float>(options.decay);
  // From here on logits_ holds the gradients of the log loss.
  for (float& logit : logits_) {
    logit = Sigmoid(logit);
  }
  for (const std::int32_t expert : experts) {
    logits_[static_cast<std::size_t>(expert)] -= 1.0F;
  }
  const auto update = [&](std::size_t at, float gradient) {
    const float g = gradient + decay * weights.values[at];
    weights.squares[at] += g * g;
    weights.values[at] -= rate * g / (std::sqrt(weights.squares[at]) + 1e-6F);
  };
  for (const std::size_t row : rows_of_weights_) {
    for (std::size_t e = 0; e < num_experts_; ++e) {
      update(row + e, logits_[e]);
    }
  }
  const std::size_t bias = 3 * num_experts_ * num_experts_;
  float of_token = 0.0F;
  float of_window = 0.0F;
  for (std::size_t e = 0; e < num_experts_; ++e) {
    update(bias + e, logits_[e]);
    of_token += logits_[e] * token_log_[e];
    of_window += logits_[e] * window_log_[e];
  }
  update(bias + num_experts_, of_token);
  update(bias + num_experts_ + 1, of_window);
}

void ExpertClassifier::CountTokens(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                                   std::int32_t rare) {
  absl::flat_hash_map<base::TokenId, std::uint32_t> uses;
  std::int64_t num_rows = 0;
  for (const std::vector<ReplayRow>& rows : steps) {
    for (const ReplayRow& row : rows) {
      ++uses[trace.sequences[row.sequence].tokens[static_cast<std::size_t>(row.token)]];
      ++num_rows;
    }
  }
  for (const auto& [token, count] : uses) {
    if (count >= static_cast<std::uint32_t>(rare)) {
      tokens_of_.push_back(token);
    }
  }
  std::sort(tokens_of_.begin(), tokens_of_.end());
  for (std::size_t i = 0; i < tokens_of_.size(); ++i) {
    place_of_[tokens_of_[i]] = static_cast<std::uint32_t>(i);
    seen_.push_back(uses[tokens_of_[i]]);
  }
  counts_.assign(tokens_of_.size() * frequency_.size(), 0);
  const float share = num_rows > 0 ? 1.0F / static_cast<float>(num_rows) : 0.0F;
  for (const std::vector<ReplayRow>& rows : steps) {
    for (const ReplayRow& row : rows) {
      const auto found =
          place_of_.find(trace.sequences[row.sequence].tokens[static_cast<std::size_t>(row.token)]);
      for (std::size_t i = 0; i < shape_.moe_layers.size(); ++i) {
        for (const std::uint16_t expert :
             trace.Experts(row.sequence, row.token, static_cast<std::int32_t>(i))) {
          frequency_[i * num_experts_ + expert] += share;
          if (found != place_of_.end()) {
            std::uint16_t& count =
                counts_[(found->second * shape_.moe_layers.size() + i) * num_experts_ + expert];
            count = static_cast<std::uint16_t>(
                std::min<int>(count + 1, std::numeric_limits<std::uint16_t>::max()));
          }
        }
      }
    }
  }
}

absl::StatusOr<std::unique_ptr<ExpertClassifier>> ExpertClassifier::Fit(
    const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps, const FitOptions& options,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  if (options.distances < 1 || options.distances > kMaxDistances || options.passes < 1 || steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fit: ", options.distances, " layers ahead, ", options.passes, " passes over ", steps.size(),
        " steps; supported are 1 to ", kMaxDistances, " layers, and at least one of the others"));
  }
  auto made = std::unique_ptr<ExpertClassifier>(new ExpertClassifier(trace.Shape(0), options.distances));
  COMOE_RETURN_IF_ERROR(made->CheckSize(0));
  made->CountTokens(trace, steps, options.rare);
  COMOE_RETURN_IF_ERROR(made->CheckSize(made->tokens_of_.size()));
  const std::size_t num_values = 3 * made->num_experts_ * made->num_experts_ + made->num_experts_ + 2;
  for (Weights& weights : made->weights_) {
    weights.values.assign(num_values, 0.0F);
    weights.squares.assign(num_values, 1e-4F);
    weights.values[num_values - 2] = 0.5F;
    weights.values[num_values - 1] = 0.5F;
  }
  const std::uint64_t total = steps.size() * static_cast<std::uint64_t>(options.passes);
  std::vector<std::int32_t> experts;
  for (std::uint64_t done = 0; done < total; ++done) {
    const ReplayRow row = steps[done % steps.size()].front();
    made->BeginStep({trace.sequences[row.sequence].tokens[static_cast<std::size_t>(row.token)]});
    for (std::size_t i = 0; i < made->shape_.moe_layers.size(); ++i) {
      const absl::Span<const std::uint16_t> routed =
          trace.Experts(row.sequence, row.token, static_cast<std::int32_t>(i));
      experts.assign(routed.begin(), routed.end());
      for (std::size_t d = 1; d <= std::min(i, static_cast<std::size_t>(options.distances)); ++d) {
        made->Learn(i, d, experts, options);
      }
      made->Observe(made->shape_.moe_layers[i], experts);
    }
    if (progress && done % 256 == 0) {
      progress(done, total);
    }
  }
  for (Weights& weights : made->weights_) {
    weights.squares = {};
  }
  return made;
}

std::string ExpertClassifier::Encode() const {
  std::string out(kMagic);
  PutValue<std::uint32_t>(&out, kVersion);
  PutValue<std::int32_t>(&out, shape_.num_layers);
  PutValue<std::int32_t>(&out, static_cast<std::int32_t>(shape_.moe_layers.size()));
  PutValue<std::int32_t>(&out, shape_.num_experts);
  PutValue<std::int32_t>(&out, shape_.experts_per_token);
  PutValue<std::int32_t>(&out, distances_);
  PutValue<std::uint32_t>(&out, static_cast<std::uint32_t>(tokens_of_.size()));
  PutValues(&out, shape_.moe_layers);
  PutValues(&out, frequency_);
  PutValues(&out, tokens_of_);
  PutValues(&out, seen_);
  PutValues(&out, counts_);
  for (const Weights& weights : weights_) {
    PutValues(&out, weights.values);
  }
  PutValue<std::uint64_t>(&out, ByteChecksum(out.data(), out.size()));
  return out;
}

absl::StatusOr<std::unique_ptr<ExpertClassifier>> ExpertClassifier::Parse(const std::string& bytes,
                                                                          const std::string& name,
                                                                          const TierShape& shape) {
  if (bytes.size() < kMagic.size() + 4 + 8 || absl::string_view(bytes).substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is no classifier (of `comoe trace fit`)"));
  }
  ByteCursor in(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size() - sizeof(std::uint64_t));
  in.Skip(kMagic.size());
  const auto version = in.Take<std::uint32_t>();
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is a classifier of version ", version,
                                                   "; this program reads version ", kVersion));
  }
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  if (sum != ByteChecksum(bytes.data(), bytes.size() - sizeof sum)) {
    return absl::DataLossError(absl::StrCat(name, ": the checksum does not match; fit it again"));
  }
  const auto num_layers = in.Take<std::int32_t>();
  const auto num_moe_layers = in.Take<std::int32_t>();
  const auto num_experts = in.Take<std::int32_t>();
  const auto k = in.Take<std::int32_t>();
  const auto distances = in.Take<std::int32_t>();
  const auto num_tokens = in.Take<std::uint32_t>();
  std::vector<std::int32_t> moe_layers;
  in.TakeAll(&moe_layers, static_cast<std::size_t>(std::max(num_moe_layers, 0)));
  if (!in.ok() || num_layers != shape.num_layers || moe_layers != shape.moe_layers ||
      num_experts != shape.num_experts || k != shape.experts_per_token) {
    return absl::InvalidArgumentError(absl::StrCat(name, " was fitted to another model (", num_layers,
                                                   " layers, ", num_experts, " experts, top-", k, ")"));
  }
  if (distances < 1 || distances > kMaxDistances) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " looks ", distances, " layers ahead; supported are 1 to ", kMaxDistances));
  }
  auto made = std::unique_ptr<ExpertClassifier>(new ExpertClassifier(shape, distances));
  COMOE_RETURN_IF_ERROR(base::Annotate(made->CheckSize(num_tokens), name));
  in.TakeAll(&made->frequency_, made->frequency_.size());
  in.TakeAll(&made->tokens_of_, num_tokens);
  in.TakeAll(&made->seen_, num_tokens);
  in.TakeAll(&made->counts_, num_tokens * made->frequency_.size());
  for (Weights& weights : made->weights_) {
    in.TakeAll(&weights.values, 3 * made->num_experts_ * made->num_experts_ + made->num_experts_ + 2);
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  bool good =
      in.ok() && in.left() == 0 && std::all_of(made->frequency_.begin(), made->frequency_.end(), finite);
  for (const Weights& weights : made->weights_) {
    good = good && std::all_of(weights.values.begin(), weights.values.end(), finite);
  }
  if (!good) {
    return absl::DataLossError(absl::StrCat(name, " is cut short, or holds what is no number; fit it again"));
  }
  for (std::size_t i = 0; i < made->tokens_of_.size(); ++i) {
    made->place_of_[made->tokens_of_[i]] = static_cast<std::uint32_t>(i);
  }
  return made;
}

}  // namespace comoe::routing
