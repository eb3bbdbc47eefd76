#include "engine/checkpoint/rope_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::checkpoint {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;

absl::StatusOr<RopeConfig::Type> ParseType(const JsonFields& rope) {
  const absl::string_view field = rope.Has("rope_type") ? "rope_type" : "type";
  COMOE_ASSIGN_OR_RETURN(const std::string type, rope.TextOr(field, "default"));
  if (type == "default") {
    return RopeConfig::Type::kDefault;
  }
  if (type == "linear") {
    return RopeConfig::Type::kLinear;
  }
  if (type == "yarn") {
    return RopeConfig::Type::kYarn;
  }
  if (type == "llama3") {
    return RopeConfig::Type::kLlama3;
  }
  return rope.Unsupported(field,
                          absl::StrCat("is ", ShowJson(nlohmann::json(type)),
                                       "; supported rotary embeddings are default, linear, yarn and llama3"));
}

// A number that 0 or null leaves at its default, as transformers' `get(...) or default` reads it.
absl::StatusOr<double> NumberOrDefault(const JsonFields& rope, absl::string_view field, double fallback,
                                       double high) {
  COMOE_ASSIGN_OR_RETURN(const double value, rope.NumberOr(field, 0.0, 0.0, high));
  return value == 0.0 ? fallback : value;
}

// original_max_position_embeddings: the config's own field wins over that of the rotary settings; the context
// length stands for both.
absl::Status ParseOriginalPositions(const JsonFields& config, const JsonFields& rope,
                                    std::int64_t context_length, RopeConfig* result) {
  constexpr const char* kField = "original_max_position_embeddings";
  const JsonFields& holder = config.Has(kField) ? config : rope;
  COMOE_ASSIGN_OR_RETURN(result->original_max_positions,
                         holder.IntegerOr(kField, context_length, 1, kMaxPositions));
  return absl::OkStatus();
}

absl::Status ParseYarn(const JsonFields& config, const JsonFields& rope, std::int64_t context_length,
                       RopeConfig* result) {
  COMOE_RETURN_IF_ERROR(ParseOriginalPositions(config, rope, context_length, result));
  const double implied =
      static_cast<double>(context_length) / static_cast<double>(result->original_max_positions);
  if (rope.Has("factor")) {
    COMOE_ASSIGN_OR_RETURN(result->factor, rope.Number("factor", 1.0, kMaxFactor));
  } else if (implied >= 1.0 && implied <= kMaxFactor) {
    result->factor = implied;
  } else {
    return rope.Invalid("factor",
                        "is missing, and max_position_embeddings / original_max_position_embeddings "
                        "is not between 1 and 1e6");
  }
  COMOE_ASSIGN_OR_RETURN(result->beta_fast, NumberOrDefault(rope, "beta_fast", 32.0, 1e6));
  COMOE_ASSIGN_OR_RETURN(result->beta_slow, NumberOrDefault(rope, "beta_slow", 1.0, 1e6));
  if (result->beta_fast < result->beta_slow) {
    return rope.Invalid("beta_fast",
                        absl::StrCat("is ", result->beta_fast, ", less than beta_slow, ", result->beta_slow));
  }
  COMOE_ASSIGN_OR_RETURN(result->truncate, rope.BoolOr("truncate", true));
  if (rope.Has("attention_factor")) {
    COMOE_ASSIGN_OR_RETURN(result->attention_factor, rope.Number("attention_factor", 1e-6, 1e6));
  }
  COMOE_ASSIGN_OR_RETURN(result->mscale, rope.NumberOr("mscale", 0.0, 0.0, 1e6));
  COMOE_ASSIGN_OR_RETURN(result->mscale_all_dim, rope.NumberOr("mscale_all_dim", 0.0, 0.0, 1e6));
  return absl::OkStatus();
}

absl::Status ParseLlama3(const JsonFields& config, const JsonFields& rope, std::int64_t context_length,
                         RopeConfig* result) {
  COMOE_RETURN_IF_ERROR(ParseOriginalPositions(config, rope, context_length, result));
  COMOE_ASSIGN_OR_RETURN(result->factor, rope.Number("factor", 1.0, kMaxFactor));
  COMOE_ASSIGN_OR_RETURN(result->low_freq_factor, rope.Number("low_freq_factor", 1e-6, 1e6));
  COMOE_ASSIGN_OR_RETURN(result->high_freq_factor, rope.Number("high_freq_factor", 1e-6, 1e6));
  if (result->high_freq_factor <= result->low_freq_factor) {
    return rope.Invalid("high_freq_factor",
                        absl::StrCat("is ", result->high_freq_factor,
                                     "; it must be greater than low_freq_factor, ", result->low_freq_factor));
  }
  return absl::OkStatus();
}

// Rotary settings may be given per kind of layer ({"full_attention": {...}}); none of our families uses that.
absl::Status RefuseNested(const nlohmann::json& object, const JsonFields& rope) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      return rope.Unsupported(ShowJson(nlohmann::json(key)),
                              "is an object; rotary settings per kind of layer are not supported");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RopeConfig> ParseRopeConfig(const JsonFields& config, std::int64_t context_length,
                                           double default_theta) {
  const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* settings = &empty;
  std::string where = "rope_parameters";
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = config.Find(field);
    if (value == nullptr) {
      continue;
    }
    if (!value->is_object()) {
      return config.Invalid(field, absl::StrCat("is ", ShowJson(*value), "; an object or null is needed"));
    }
    if (!value->empty()) {
      settings = value;
      where = field;
      break;
    }
  }
  const JsonFields rope(settings, config.file(), where + ".");
  COMOE_RETURN_IF_ERROR(RefuseNested(*settings, rope));
  RopeConfig result;
  COMOE_ASSIGN_OR_RETURN(result.type, ParseType(rope));
  const JsonFields& theta_holder = rope.Has("rope_theta") ? rope : config;
  COMOE_ASSIGN_OR_RETURN(result.theta,
                         theta_holder.NumberOr("rope_theta", default_theta, 1.0 + 1e-6, kMaxTheta));
  for (const JsonFields& holder : {config, rope}) {
    COMOE_ASSIGN_OR_RETURN(const double partial, holder.NumberOr("partial_rotary_factor", 1.0, 0.0, 1e6));
    if (partial != 1.0) {
      return holder.Unsupported("partial_rotary_factor",
                                absl::StrCat("is ", partial, "; only whole heads are rotated (1.0)"));
    }
  }
  switch (result.type) {
    case RopeConfig::Type::kDefault:
      break;
    case RopeConfig::Type::kLinear: {
      COMOE_ASSIGN_OR_RETURN(result.factor, rope.Number("factor", 1e-6, kMaxFactor));
      break;
    }
    case RopeConfig::Type::kYarn:
      COMOE_RETURN_IF_ERROR(ParseYarn(config, rope, context_length, &result));
      break;
    case RopeConfig::Type::kLlama3:
      COMOE_RETURN_IF_ERROR(ParseLlama3(config, rope, context_length, &result));
      break;
  }
  return result;
}

}  // namespace comoe::checkpoint
