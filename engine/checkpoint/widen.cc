#include "engine/checkpoint/widen.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"
#include "engine/checkpoint/weight_names.h"
#include "xxhash.h"

namespace comoe::checkpoint {
namespace {

using tensor::DType;

constexpr double kFillerDeviation = 0.02;
// ParseModelConfig accepts no more.
constexpr std::int64_t kMaxHidden = std::int64_t{1} << 17;
constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 20;

// What a tensor of some role holds outside the small one's rows and columns. Corner elements take the rows'
// rule.
enum class Fill { kZero, kFiller };
struct Rule {
  Fill rows = Fill::kZero;
  Fill columns = Fill::kZero;
  bool scaled = false;  // an RMSNorm over the hidden stream
};

Rule RuleOf(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:  // columns are the stream
    case WeightRole::kOutput:     // rows are the stream
    case WeightRole::kOutputBias:
    case WeightRole::kSharedDown:
    case WeightRole::kDenseDown:
      return {Fill::kZero, Fill::kZero, false};
    case WeightRole::kExpertDown:  // rows are the stream; columns meet zeros
    case WeightRole::kExpertGate:  // rows must give zero; columns meet zeros
      return {Fill::kZero, Fill::kFiller, false};
    case WeightRole::kFinalNorm:
    case WeightRole::kInputNorm:
    case WeightRole::kPostAttentionNorm:
      return {Fill::kFiller, Fill::kFiller, true};
    default:  // reads the stream, whose widened part is zero; or does not change its shape
      return {Fill::kFiller, Fill::kFiller, false};
  }
}

void StoreElement(float value, DType dtype, std::byte* data, std::size_t i) {
  if (dtype == DType::kF32) {
    std::memcpy(data + i * 4, &value, 4);
    return;
  }
  const std::uint16_t bits = dtype == DType::kBf16 ? tensor::FloatToBf16(value) : tensor::FloatToF16(value);
  std::memcpy(data + i * 2, &bits, 2);
}

// Draw `i` of a tensor: the sum of four uniforms, which is near enough to normal and costs one draw of 64
// bits.
float FillerAt(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t bits = base::RandomBits(seed, i);
  const auto sum = static_cast<std::int64_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                             ((bits >> 32) & 0xffff) + (bits >> 48));
  // Each uniform has the variance 65536^2 / 12, four of them 65536^2 / 3.
  constexpr double kScale = kFillerDeviation * 1.7320508075688772 / 65536.0;
  return static_cast<float>(static_cast<double>(sum - 2 * 65535) * kScale);
}

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// A vector is one row, so that only its columns grow.
Matrix AsMatrix(const std::vector<std::int64_t>& shape) {
  return shape.size() == 1 ? Matrix{1, shape[0]} : Matrix{shape[0], shape[1]};
}

struct WideTensor {
  TensorInfo info;
  const TensorInfo* small = nullptr;
  Rule rule;
};

class WidenedSource : public TensorSource {
 public:
  WidenedSource(std::unique_ptr<TensorSource> owned, const TensorSource& source, double norm_scale,
                absl::flat_hash_map<std::string, WideTensor> tensors)
      : owned_(std::move(owned)), source_(source), norm_scale_(norm_scale), tensors_(std::move(tensors)) {}

  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    names.reserve(tensors_.size());
    for (const auto& [name, wide] : tensors_) {
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const TensorInfo* Find(absl::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.info;
  }

  absl::StatusOr<TensorData> Read(const TensorInfo& info) const override {
    const auto found = tensors_.find(info.name);
    if (found == tensors_.end()) {
      return absl::NotFoundError(absl::StrCat("no tensor ", Quoted(info.name)));
    }
    const WideTensor& wide = found->second;
    COMOE_ASSIGN_OR_RETURN(const TensorData small, source_.Read(*wide.small));
    TensorData data;
    data.owned = std::make_unique<std::byte[]>(wide.info.bytes);  // zeros
    data.bytes = {data.owned.get(), wide.info.bytes};
    if (wide.rule.scaled) {
      WriteScaled(wide, small.bytes.data(), data.owned.get());
    } else {
      WritePadded(wide, small.bytes.data(), data.owned.get());
    }
    source_.Release(*wide.small);
    return data;
  }

  void Release(const TensorInfo&) const override {}  // every Read makes its own bytes

 private:
  static void WriteFiller(const WideTensor& wide, std::uint64_t seed, std::int64_t begin, std::int64_t end,
                          std::byte* target) {
    for (std::int64_t i = begin; i < end; ++i) {
      StoreElement(FillerAt(seed, static_cast<std::uint64_t>(i)), wide.info.dtype, target,
                   static_cast<std::size_t>(i));
    }
  }

  static std::uint64_t SeedOf(const WideTensor& wide) {
    return XXH3_64bits(wide.info.name.data(), wide.info.name.size());
  }

  static void WritePadded(const WideTensor& wide, const std::byte* small, std::byte* target) {
    const Matrix from = AsMatrix(wide.small->shape);
    const Matrix to = AsMatrix(wide.info.shape);
    const std::uint64_t seed = SeedOf(wide);
    const std::size_t element = tensor::DTypeBytes(wide.info.dtype);
    const auto row_bytes = static_cast<std::size_t>(from.columns) * element;
    for (std::int64_t r = 0; r < from.rows; ++r) {
      std::memcpy(target + static_cast<std::size_t>(r * to.columns) * element,
                  small + static_cast<std::size_t>(r) * row_bytes, row_bytes);
      if (wide.rule.columns == Fill::kFiller) {
        WriteFiller(wide, seed, r * to.columns + from.columns, (r + 1) * to.columns, target);
      }
    }
    if (wide.rule.rows == Fill::kFiller) {
      WriteFiller(wide, seed, from.rows * to.columns, to.rows * to.columns, target);
    }
  }

  void WriteScaled(const WideTensor& wide, const std::byte* small, std::byte* target) const {
    const std::int64_t from = wide.small->shape[0];
    for (std::int64_t i = 0; i < from; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const double value = tensor::LoadElement(small, wide.small->dtype, index);
      StoreElement(static_cast<float>(value * norm_scale_), wide.info.dtype, target, index);
    }
    WriteFiller(wide, SeedOf(wide), from, wide.info.shape[0], target);
  }

  const std::unique_ptr<TensorSource> owned_;  // null when the source is somebody else's
  const TensorSource& source_;
  const double norm_scale_;
  const absl::flat_hash_map<std::string, WideTensor> tensors_;
};

// A power of 4 (1 included): then sqrt(h / H) is a power of 2 and scaling by it is exact in BF16 and F32,
// whose exponents have room. F16 has no such room.
bool ScaleIsExact(std::int64_t from, std::int64_t to) {
  if (to % from != 0) {
    return false;
  }
  std::int64_t ratio = to / from;
  while (ratio % 4 == 0) {
    ratio /= 4;
  }
  return ratio == 1;
}

absl::StatusOr<std::unique_ptr<TensorSource>> Make(std::unique_ptr<TensorSource> owned,
                                                   const TensorSource& source, const ModelConfig& from,
                                                   const ModelConfig& to) {
  const bool exact = ScaleIsExact(from.hidden, to.hidden);
  absl::flat_hash_map<std::string, WideTensor> tensors;
  absl::Status status;
  VisitExpectedTensors(to, [&](const ExpectedTensor& expected) {
    const TensorInfo* small = source.Find(expected.name);
    if (small == nullptr || small->shape.size() != expected.shape.size() || !small->readable ||
        !std::equal(small->shape.begin(), small->shape.end(), expected.shape.begin(), std::less_equal<>())) {
      status = absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(expected.name), " is missing or does not fit into the widened one"));
      return false;
    }
    WideTensor wide;
    wide.info = *small;
    wide.info.shape = expected.shape;
    wide.small = small;
    wide.rule = RuleOf(expected.role);
    if (wide.rule.scaled && from.hidden != to.hidden && !(exact && small->dtype != DType::kF16)) {
      wide.info.dtype = DType::kF32;
      wide.info.stored_dtype = std::string(tensor::DTypeName(DType::kF32));
    }
    wide.info.bytes = tensor::DTypeBytes(wide.info.dtype);
    for (const std::int64_t dimension : expected.shape) {
      wide.info.bytes *= static_cast<std::uint64_t>(dimension);
    }
    tensors.emplace(expected.name, std::move(wide));
    return true;
  });
  COMOE_RETURN_IF_ERROR(status);
  const double norm_scale = std::sqrt(static_cast<double>(from.hidden) / static_cast<double>(to.hidden));
  return std::make_unique<WidenedSource>(std::move(owned), source, norm_scale, std::move(tensors));
}

}  // namespace

absl::StatusOr<ModelConfig> WidenConfig(const ModelConfig& config, std::int64_t hidden,
                                        std::int64_t intermediate) {
  if (hidden < config.hidden || hidden > kMaxHidden) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hidden size ", hidden, " is not between the model's own, ", config.hidden, ", and ", kMaxHidden));
  }
  if (intermediate < config.expert_intermediate || intermediate > kMaxIntermediate) {
    return absl::InvalidArgumentError(absl::StrCat("expert intermediate size ", intermediate,
                                                   " is not between the model's own, ",
                                                   config.expert_intermediate, ", and ", kMaxIntermediate));
  }
  ModelConfig wide = config;
  wide.hidden = hidden;
  wide.expert_intermediate = intermediate;
  wide.norm_epsilon = config.norm_epsilon * static_cast<double>(config.hidden) / static_cast<double>(hidden);
  return wide;
}

absl::StatusOr<std::unique_ptr<TensorSource>> MakeWidenedSource(const TensorSource& source,
                                                                const ModelConfig& from,
                                                                const ModelConfig& to) {
  return Make(nullptr, source, from, to);
}

absl::StatusOr<std::unique_ptr<TensorSource>> MakeWidenedSource(std::unique_ptr<TensorSource> source,
                                                                const ModelConfig& from,
                                                                const ModelConfig& to) {
  const TensorSource& reference = *source;
  return Make(std::move(source), reference, from, to);
}

}  // namespace comoe::checkpoint
