#include "engine/checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/json_fields.h"
#include "engine/checkpoint/messages.h"
#include "engine/checkpoint/rope_config.h"

namespace comoe::checkpoint {
namespace {

using Json = nlohmann::json;

// Upper bounds. They are far above any published model and keep every product of sizes below 2^62
// (memory_plan.h): experts of all layers * 3 * hidden * intermediate * 4 bytes <= 2^20 * 2^39 * 2^2.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHidden = std::int64_t{1} << 17;
constexpr std::int64_t kMaxIntermediate = std::int64_t{1} << 20;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 14;
constexpr std::int64_t kMaxHeadsWidth = std::int64_t{1} << 20;  // heads * head_dim
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
constexpr std::int64_t kMaxExpertsInAll = std::int64_t{1} << 20;  // layers * experts
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

// What differs between the families, as data.
struct Family {
  const char* model_type;
  double default_theta;
  double default_epsilon;
  const char* expert_size_field;  // of routed experts
  bool has_dense_layers;          // decoder_sparse_step, mlp_only_layers, intermediate_size of dense layers
  bool has_shared_expert;
  bool has_attention_bias;  // attention_bias: q, k, v and o
  bool has_qkv_bias;        // qkv_bias: q, k and v, on by default
  bool has_clip_qkv;
  QkNorm qk_norm;
  enum class Window { kNone, kAllLayers, kAllLayersIfUsed, kLayerTypes } window;
  bool always_normalizes;
};

constexpr std::array<Family, 4> kFamilies = {{
    {"mixtral", 1e6, 1e-5, "intermediate_size", false, false, false, false, false, QkNorm::kNone,
     Family::Window::kAllLayers, true},
    {"qwen2_moe", 1e4, 1e-6, "moe_intermediate_size", true, true, false, true, false, QkNorm::kNone,
     Family::Window::kLayerTypes, false},
    {"qwen3_moe", 1e4, 1e-6, "moe_intermediate_size", true, false, true, false, false, QkNorm::kPerHead,
     Family::Window::kAllLayersIfUsed, false},
    {"olmoe", 1e4, 1e-5, "intermediate_size", false, false, true, false, true, QkNorm::kFullWidth,
     Family::Window::kNone, false},
}};

absl::StatusOr<const Family*> FindFamily(const JsonFields& fields) {
  COMOE_ASSIGN_OR_RETURN(const std::string type, fields.Text("model_type"));
  std::vector<std::string> supported;
  for (const Family& family : kFamilies) {
    if (type == family.model_type) {
      return &family;
    }
    supported.emplace_back(family.model_type);
  }
  return fields.Unsupported("model_type", absl::StrCat("is ", Quoted(type), "; supported architectures are ",
                                                       absl::StrJoin(supported, ", ")));
}

// Options that change what the model computes and that this family, or nobody here, implements.
absl::Status RefuseUnsupported(const JsonFields& fields, const Family& family) {
  if (const Json* quantization = fields.Find("quantization_config"); quantization != nullptr) {
    const bool named = quantization->is_object() && quantization->contains("quant_method");
    return fields.Unsupported(
        "quantization_config",
        absl::StrCat("asks for ",
                     named ? ShowJson((*quantization)["quant_method"]) : "a quantised checkpoint",
                     "; supported weights are BF16, F16 and F32"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::string activation, fields.TextOr("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return fields.Unsupported("hidden_act", absl::StrCat("is ", Quoted(activation), "; supported is 'silu'"));
  }
  const auto refuse_if_set = [&](bool has, const char* field) -> absl::Status {
    if (!has) {
      COMOE_ASSIGN_OR_RETURN(const bool value, fields.BoolOr(field, false));
      if (value) {
        return fields.Unsupported(field,
                                  absl::StrCat("is true; ", family.model_type, " has no such option here"));
      }
    }
    return absl::OkStatus();
  };
  COMOE_RETURN_IF_ERROR(refuse_if_set(family.has_attention_bias, "attention_bias"));
  COMOE_RETURN_IF_ERROR(refuse_if_set(family.has_qkv_bias, "qkv_bias"));
  COMOE_RETURN_IF_ERROR(refuse_if_set(false, "mlp_bias"));
  if (!family.has_clip_qkv && fields.Has("clip_qkv")) {
    return fields.Unsupported("clip_qkv",
                              absl::StrCat("is set; ", family.model_type, " has no such option here"));
  }
  if (!family.has_shared_expert) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t shared,
                           fields.IntegerOr("shared_expert_intermediate_size", 0, 0, kMaxIntermediate));
    if (shared != 0) {
      return fields.Unsupported(
          "shared_expert_intermediate_size",
          absl::StrCat("is ", shared, "; ", family.model_type, " has no shared expert here"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseSizes(const JsonFields& fields, ModelConfig* config) {
  COMOE_ASSIGN_OR_RETURN(config->vocab_size, fields.Integer("vocab_size", 1, kMaxVocab));
  COMOE_ASSIGN_OR_RETURN(config->hidden, fields.Integer("hidden_size", 1, kMaxHidden));
  COMOE_ASSIGN_OR_RETURN(config->num_heads, fields.Integer("num_attention_heads", 1, kMaxHeads));
  COMOE_ASSIGN_OR_RETURN(config->num_kv_heads,
                         fields.IntegerOr("num_key_value_heads", config->num_heads, 1, kMaxHeads));
  COMOE_ASSIGN_OR_RETURN(config->context_length, fields.Integer("max_position_embeddings", 1, kMaxPositions));
  COMOE_ASSIGN_OR_RETURN(config->tied_embeddings, fields.BoolOr("tie_word_embeddings", false));
  if (config->num_heads % config->num_kv_heads != 0) {
    return fields.Invalid("num_key_value_heads",
                          absl::StrCat("is ", config->num_kv_heads, ", which does not divide ",
                                       "num_attention_heads, ", config->num_heads));
  }
  if (fields.Has("head_dim")) {
    COMOE_ASSIGN_OR_RETURN(config->head_dim, fields.Integer("head_dim", 2, kMaxHeadDim));
  } else if (config->hidden % config->num_heads != 0) {
    return fields.Invalid("head_dim",
                          absl::StrCat("is missing, and hidden_size, ", config->hidden,
                                       ", is no multiple of num_attention_heads, ", config->num_heads));
  } else {
    config->head_dim = config->hidden / config->num_heads;
  }
  if (config->head_dim % 2 != 0) {
    return fields.Invalid("head_dim",
                          absl::StrCat("is ", config->head_dim, "; rotary embeddings need an even one"));
  }
  if (config->num_heads * config->head_dim > kMaxHeadsWidth) {
    return fields.Invalid("head_dim", absl::StrCat("is ", config->head_dim, "; with ", config->num_heads,
                                                   " heads that is more than ", kMaxHeadsWidth));
  }
  return absl::OkStatus();
}

// num_experts and num_local_experts are the same number under two names.
absl::StatusOr<std::int64_t> ParseExpertCount(const JsonFields& fields) {
  const bool has_local = fields.Has("num_local_experts");
  const char* field = has_local ? "num_local_experts" : "num_experts";
  COMOE_ASSIGN_OR_RETURN(const std::int64_t count, fields.Integer(field, 1, kMaxExperts));
  if (has_local && fields.Has("num_experts")) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t other, fields.Integer("num_experts", 1, kMaxExperts));
    if (other != count) {
      return fields.Invalid("num_experts", absl::StrCat("is ", other, " and num_local_experts is ", count,
                                                        "; they are two names of one number"));
    }
  }
  return count;
}

absl::Status ParseExperts(const JsonFields& fields, const Family& family, ModelConfig* config) {
  COMOE_ASSIGN_OR_RETURN(config->num_experts, ParseExpertCount(fields));
  COMOE_ASSIGN_OR_RETURN(config->experts_per_token, fields.Integer("num_experts_per_tok", 1, kMaxExperts));
  if (config->experts_per_token > config->num_experts) {
    return fields.Invalid(
        "num_experts_per_tok",
        absl::StrCat("is ", config->experts_per_token, ", more than the ", config->num_experts, " experts"));
  }
  if (config->num_experts * config->num_layers() > kMaxExpertsInAll) {
    return fields.Invalid("num_hidden_layers",
                          absl::StrCat("is ", config->num_layers(), "; with ", config->num_experts,
                                       " experts a layer that is more than ", kMaxExpertsInAll, " experts"));
  }
  COMOE_ASSIGN_OR_RETURN(config->expert_intermediate,
                         fields.Integer(family.expert_size_field, 1, kMaxIntermediate));
  if (family.has_shared_expert) {
    COMOE_ASSIGN_OR_RETURN(config->shared_intermediate,
                           fields.Integer("shared_expert_intermediate_size", 0, kMaxIntermediate));
  }
  config->normalize_weights = true;
  if (!family.always_normalizes) {
    COMOE_ASSIGN_OR_RETURN(config->normalize_weights, fields.BoolOr("norm_topk_prob", false));
  }
  return absl::OkStatus();
}

// The array in `field`, empty when not set.
absl::StatusOr<std::vector<Json>> Array(const JsonFields& fields, absl::string_view field) {
  const Json* value = fields.Find(field);
  if (value == nullptr) {
    return std::vector<Json>();
  }
  if (!value->is_array()) {
    return fields.Invalid(field, absl::StrCat("is ", ShowJson(*value), "; a list is needed"));
  }
  return value->get<std::vector<Json>>();
}

// Which layers have experts: (l + 1) % decoder_sparse_step == 0, but for those in mlp_only_layers.
absl::Status ParseSparseLayers(const JsonFields& fields, const Family& family, ModelConfig* config) {
  if (!family.has_dense_layers) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const std::int64_t step, fields.IntegerOr("decoder_sparse_step", 1, 1, kMaxLayers));
  for (std::int64_t l = 0; l < config->num_layers(); ++l) {
    config->layers[static_cast<std::size_t>(l)].sparse = (l + 1) % step == 0;
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<Json> dense, Array(fields, "mlp_only_layers"));
  for (std::size_t i = 0; i < dense.size(); ++i) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t l,
                           IntegerInRange(dense[i], fields.Place(absl::StrCat("mlp_only_layers[", i, "]")), 0,
                                          config->num_layers() - 1));
    config->layers[static_cast<std::size_t>(l)].sparse = false;
  }
  const auto is_sparse = [](const LayerConfig& layer) { return layer.sparse; };
  if (std::none_of(config->layers.begin(), config->layers.end(), is_sparse)) {
    return fields.Unsupported("decoder_sparse_step", "and mlp_only_layers leave no layer with experts");
  }
  if (!std::all_of(config->layers.begin(), config->layers.end(), is_sparse)) {
    COMOE_ASSIGN_OR_RETURN(config->dense_intermediate,
                           fields.Integer("intermediate_size", 1, kMaxIntermediate));
  }
  return absl::OkStatus();
}

// layer_types as flags (true: sliding); empty when not set.
absl::StatusOr<std::vector<bool>> ParseLayerTypes(const JsonFields& fields, std::int64_t num_layers) {
  COMOE_ASSIGN_OR_RETURN(const std::vector<Json> types, Array(fields, "layer_types"));
  if (!types.empty() && types.size() != static_cast<std::size_t>(num_layers)) {
    return fields.Invalid("layer_types",
                          absl::StrCat("has ", types.size(), " entries for ", num_layers, " layers"));
  }
  std::vector<bool> sliding;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "sliding_attention" && types[i] != "full_attention") {
      return fields.Unsupported(
          absl::StrCat("layer_types[", i, "]"),
          absl::StrCat("is ", ShowJson(types[i]), "; supported are full_attention and sliding_attention"));
    }
    sliding.push_back(types[i] == "sliding_attention");
  }
  return sliding;
}

// Sliding windows, as each family's modelling code reads them. A window of 0 or null is off.
absl::Status ParseWindows(const JsonFields& fields, const Family& family, ModelConfig* config) {
  COMOE_ASSIGN_OR_RETURN(std::int64_t window, fields.IntegerOr("sliding_window", 0, 0, kMaxPositions));
  COMOE_ASSIGN_OR_RETURN(const std::vector<bool> types, ParseLayerTypes(fields, config->num_layers()));
  const bool needs_switch =
      family.window == Family::Window::kLayerTypes || family.window == Family::Window::kAllLayersIfUsed;
  if (needs_switch) {
    COMOE_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
    window = used ? window : 0;
  }
  if (family.window == Family::Window::kNone && window != 0) {
    return fields.Unsupported("sliding_window",
                              absl::StrCat("is ", window, "; ", family.model_type, " has no windows here"));
  }
  COMOE_ASSIGN_OR_RETURN(
      const std::int64_t max_window_layers,
      fields.IntegerOr("max_window_layers", 28, 0, std::numeric_limits<std::int32_t>::max()));
  for (std::int64_t l = 0; l < config->num_layers(); ++l) {
    const auto index = static_cast<std::size_t>(l);
    bool slides = window != 0;
    if (family.window == Family::Window::kLayerTypes) {
      // Without layer_types every other layer below max_window_layers slides, starting with the first.
      slides = slides && (types.empty() ? l % 2 == 0 && l < max_window_layers : types[index]);
    } else if (!types.empty() && types[index] != slides) {
      return fields.Unsupported(
          absl::StrCat("layer_types[", l, "]"),
          absl::StrCat("contradicts sliding_window; all layers of ", family.model_type, " are alike"));
    }
    config->layers[index].window_tokens = slides ? window : 0;
  }
  return absl::OkStatus();
}

absl::Status ParseAttention(const JsonFields& fields, const Family& family, ModelConfig* config) {
  config->qk_norm = family.qk_norm;
  if (family.has_attention_bias) {
    COMOE_ASSIGN_OR_RETURN(const bool bias, fields.BoolOr("attention_bias", false));
    config->qkv_bias = bias;
    config->output_bias = bias;
  } else if (family.has_qkv_bias) {
    COMOE_ASSIGN_OR_RETURN(config->qkv_bias, fields.BoolOr("qkv_bias", true));
  }
  if (family.has_clip_qkv && fields.Has("clip_qkv")) {
    COMOE_ASSIGN_OR_RETURN(config->clip_qkv, fields.Number("clip_qkv", 1e-30, 1e30));
  }
  return absl::OkStatus();
}

// A token id, a list of them, or nothing.
absl::StatusOr<std::vector<std::int32_t>> ParseTokenIds(const JsonFields& fields, absl::string_view field,
                                                        std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  const Json* value = fields.Find(field);
  if (value == nullptr) {
    return ids;
  }
  if (!value->is_array()) {
    COMOE_ASSIGN_OR_RETURN(const std::int64_t id,
                           IntegerInRange(*value, fields.Place(field), 0, vocab_size - 1));
    ids.push_back(static_cast<std::int32_t>(id));
    return ids;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    COMOE_ASSIGN_OR_RETURN(
        const std::int64_t id,
        IntegerInRange((*value)[i], fields.Place(absl::StrCat(field, "[", i, "]")), 0, vocab_size - 1));
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

absl::StatusOr<Json> ParseBounded(absl::string_view json, absl::string_view name) {
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has ", json.size(), " bytes, more than the ", kMaxConfigBytes, " accepted"));
  }
  return ParseJsonObject(json, name);
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view name) {
  COMOE_ASSIGN_OR_RETURN(const Json document, ParseBounded(json, name));
  const JsonFields fields(&document, std::string(name));
  COMOE_ASSIGN_OR_RETURN(const Family* const family, FindFamily(fields));
  COMOE_RETURN_IF_ERROR(RefuseUnsupported(fields, *family));
  ModelConfig config;
  config.model_type = family->model_type;
  COMOE_RETURN_IF_ERROR(ParseSizes(fields, &config));
  COMOE_ASSIGN_OR_RETURN(const std::int64_t num_layers, fields.Integer("num_hidden_layers", 1, kMaxLayers));
  config.layers.resize(static_cast<std::size_t>(num_layers));
  COMOE_ASSIGN_OR_RETURN(config.norm_epsilon,
                         fields.NumberOr("rms_norm_eps", family->default_epsilon, 1e-30, 1.0));
  COMOE_RETURN_IF_ERROR(ParseExperts(fields, *family, &config));
  COMOE_RETURN_IF_ERROR(ParseSparseLayers(fields, *family, &config));
  COMOE_RETURN_IF_ERROR(ParseWindows(fields, *family, &config));
  COMOE_RETURN_IF_ERROR(ParseAttention(fields, *family, &config));
  COMOE_ASSIGN_OR_RETURN(config.rope, ParseRopeConfig(fields, config.context_length, family->default_theta));
  COMOE_ASSIGN_OR_RETURN(config.eos_token_ids, ParseTokenIds(fields, "eos_token_id", config.vocab_size));
  COMOE_ASSIGN_OR_RETURN(const std::int64_t bos,
                         fields.IntegerOr("bos_token_id", -1, 0, config.vocab_size - 1));
  config.bos_token_id = static_cast<std::int32_t>(bos);
  return config;
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json, absl::string_view name) {
  COMOE_ASSIGN_OR_RETURN(const Json document, ParseBounded(json, name));
  const JsonFields fields(&document, std::string(name));
  GenerationDefaults result;
  COMOE_ASSIGN_OR_RETURN(result.do_sample, fields.BoolOr("do_sample", result.do_sample));
  COMOE_ASSIGN_OR_RETURN(result.temperature, fields.NumberOr("temperature", result.temperature, 0.0, 1e6));
  COMOE_ASSIGN_OR_RETURN(result.top_p, fields.NumberOr("top_p", result.top_p, 1e-9, 1.0));
  COMOE_ASSIGN_OR_RETURN(result.min_p, fields.NumberOr("min_p", result.min_p, 0.0, 1.0));
  COMOE_ASSIGN_OR_RETURN(result.repetition_penalty,
                         fields.NumberOr("repetition_penalty", result.repetition_penalty, 1e-9, 2.0));
  // 0 and -1 both stand for "off" in published files.
  COMOE_ASSIGN_OR_RETURN(const std::int64_t top_k, fields.IntegerOr("top_k", result.top_k, -1, kMaxVocab));
  result.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  COMOE_ASSIGN_OR_RETURN(result.eos_token_ids, ParseTokenIds(fields, "eos_token_id", kMaxVocab));
  return result;
}

absl::StatusOr<std::string> WithFields(absl::string_view json, const ModelConfig& config) {
  COMOE_ASSIGN_OR_RETURN(Json document, ParseBounded(json, "config.json"));
  for (const Family& family : kFamilies) {
    if (config.model_type == family.model_type) {
      document[family.expert_size_field] = config.expert_intermediate;
    }
  }
  document["hidden_size"] = config.hidden;
  document["head_dim"] = config.head_dim;
  document["rms_norm_eps"] = config.norm_epsilon;
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace comoe::checkpoint
