#include "engine/checkpoint/weight_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"

namespace comoe::checkpoint {
namespace {

constexpr std::size_t kNamesShown = 5;

FfnNames ProjectionNames(absl::string_view prefix) {
  return {absl::StrCat(prefix, ".gate_proj.weight"), absl::StrCat(prefix, ".up_proj.weight"),
          absl::StrCat(prefix, ".down_proj.weight")};
}

std::string LayerPrefix(std::int64_t l) { return absl::StrCat("model.layers.", l); }

LayerNames MakeLayerNames(const ModelConfig& config, std::int64_t l, bool mixtral_spelling) {
  const std::string prefix = LayerPrefix(l);
  const std::string attention = prefix + ".self_attn";
  LayerNames names;
  names.input_norm = prefix + ".input_layernorm.weight";
  names.post_attention_norm = prefix + ".post_attention_layernorm.weight";
  names.query = attention + ".q_proj.weight";
  names.key = attention + ".k_proj.weight";
  names.value = attention + ".v_proj.weight";
  names.output = attention + ".o_proj.weight";
  if (config.qkv_bias) {
    names.query_bias = attention + ".q_proj.bias";
    names.key_bias = attention + ".k_proj.bias";
    names.value_bias = attention + ".v_proj.bias";
  }
  if (config.output_bias) {
    names.output_bias = attention + ".o_proj.bias";
  }
  if (config.qk_norm != QkNorm::kNone) {
    names.query_norm = attention + ".q_norm.weight";
    names.key_norm = attention + ".k_norm.weight";
  }
  if (!config.layers[static_cast<std::size_t>(l)].sparse) {
    names.dense = ProjectionNames(prefix + ".mlp");
    return names;
  }
  names.router = prefix + (mixtral_spelling ? ".block_sparse_moe.gate.weight" : ".mlp.gate.weight");
  if (config.shared_intermediate != 0) {
    names.shared = ProjectionNames(prefix + ".mlp.shared_expert");
    names.shared_sigmoid_gate = prefix + ".mlp.shared_expert_gate.weight";
  }
  return names;
}

// Hands out expected tensors until the visitor has had enough.
class Visitor {
 public:
  explicit Visitor(absl::FunctionRef<bool(const ExpectedTensor&)> visit) : visit_(visit) {}

  bool stopped() const { return stopped_; }
  void Add(WeightRole role, std::int64_t layer, std::int64_t expert, const std::string& name,
           std::vector<std::int64_t> shape) {
    if (stopped_ || name.empty()) {
      return;
    }
    const ExpectedTensor tensor = {role, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(expert),
                                   name, std::move(shape)};
    stopped_ = !visit_(tensor);
  }

 private:
  absl::FunctionRef<bool(const ExpectedTensor&)> visit_;
  bool stopped_ = false;
};

void VisitLayer(const ModelConfig& config, const WeightNames& names, std::int64_t l, Visitor* visitor) {
  const std::int64_t d = config.hidden;
  const std::int64_t q = config.num_heads * config.head_dim;
  const std::int64_t kv = config.num_kv_heads * config.head_dim;
  const bool full_width = config.qk_norm == QkNorm::kFullWidth;
  const LayerNames& layer = names.layer(l);
  visitor->Add(WeightRole::kInputNorm, l, -1, layer.input_norm, {d});
  visitor->Add(WeightRole::kQuery, l, -1, layer.query, {q, d});
  visitor->Add(WeightRole::kKey, l, -1, layer.key, {kv, d});
  visitor->Add(WeightRole::kValue, l, -1, layer.value, {kv, d});
  visitor->Add(WeightRole::kOutput, l, -1, layer.output, {d, q});
  visitor->Add(WeightRole::kQueryBias, l, -1, layer.query_bias, {q});
  visitor->Add(WeightRole::kKeyBias, l, -1, layer.key_bias, {kv});
  visitor->Add(WeightRole::kValueBias, l, -1, layer.value_bias, {kv});
  visitor->Add(WeightRole::kOutputBias, l, -1, layer.output_bias, {d});
  visitor->Add(WeightRole::kQueryNorm, l, -1, layer.query_norm, {full_width ? q : config.head_dim});
  visitor->Add(WeightRole::kKeyNorm, l, -1, layer.key_norm, {full_width ? kv : config.head_dim});
  visitor->Add(WeightRole::kPostAttentionNorm, l, -1, layer.post_attention_norm, {d});
  visitor->Add(WeightRole::kDenseGate, l, -1, layer.dense.gate, {config.dense_intermediate, d});
  visitor->Add(WeightRole::kDenseUp, l, -1, layer.dense.up, {config.dense_intermediate, d});
  visitor->Add(WeightRole::kDenseDown, l, -1, layer.dense.down, {d, config.dense_intermediate});
  visitor->Add(WeightRole::kRouter, l, -1, layer.router, {config.num_experts, d});
  visitor->Add(WeightRole::kSharedGate, l, -1, layer.shared.gate, {config.shared_intermediate, d});
  visitor->Add(WeightRole::kSharedUp, l, -1, layer.shared.up, {config.shared_intermediate, d});
  visitor->Add(WeightRole::kSharedDown, l, -1, layer.shared.down, {d, config.shared_intermediate});
  visitor->Add(WeightRole::kSharedSigmoidGate, l, -1, layer.shared_sigmoid_gate, {1, d});
  if (!config.layers[static_cast<std::size_t>(l)].sparse) {
    return;
  }
  for (std::int64_t e = 0; e < config.num_experts && !visitor->stopped(); ++e) {
    const FfnNames expert = names.Expert({static_cast<std::int32_t>(l), static_cast<std::int32_t>(e)});
    visitor->Add(WeightRole::kExpertGate, l, e, expert.gate, {config.expert_intermediate, d});
    visitor->Add(WeightRole::kExpertUp, l, e, expert.up, {config.expert_intermediate, d});
    visitor->Add(WeightRole::kExpertDown, l, e, expert.down, {d, config.expert_intermediate});
  }
}

std::string ShowShape(const std::vector<std::int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Tensors that are packed into one matrix or blob share a dtype; each such set remembers its first member.
enum class DTypeGroup { kNone, kQkv, kShared, kDense, kExperts };

DTypeGroup GroupOf(WeightRole role) {
  switch (role) {
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
      return DTypeGroup::kQkv;
    case WeightRole::kSharedGate:
    case WeightRole::kSharedUp:
    case WeightRole::kSharedDown:
      return DTypeGroup::kShared;
    case WeightRole::kDenseGate:
    case WeightRole::kDenseUp:
    case WeightRole::kDenseDown:
      return DTypeGroup::kDense;
    case WeightRole::kExpertGate:
    case WeightRole::kExpertUp:
    case WeightRole::kExpertDown:
      return DTypeGroup::kExperts;
    default:
      return DTypeGroup::kNone;
  }
}

class Checker {
 public:
  explicit Checker(const TensorSource& source) : source_(source) {}

  // False on the first tensor that is wrong; missing ones are gathered.
  bool Check(const ExpectedTensor& expected) {
    const TensorInfo* info = source_.Find(expected.name);
    if (info == nullptr) {
      ++num_missing_;
      if (missing_.size() < kNamesShown) {
        missing_.push_back(Quoted(expected.name));
      }
      // Enough to tell: a config that asks for a million tensors of another model ends here.
      return num_missing_ < 100'000;
    }
    ++num_found_;
    if (info->shape != expected.shape) {
      status_ = absl::InvalidArgumentError(absl::StrCat(info->file, ": tensor ", Quoted(info->name),
                                                        ": shape is ", ShowShape(info->shape),
                                                        ", the config asks for ", ShowShape(expected.shape)));
      return false;
    }
    if (!info->readable) {
      status_ =
          absl::UnimplementedError(absl::StrCat(info->file, ": tensor ", Quoted(info->name), ": dtype is ",
                                                info->stored_dtype, "; supported are BF16, F16 and F32"));
      return false;
    }
    return CheckGroup(expected, *info);
  }

  // `folder` is where the tensors were looked for.
  absl::Status Finish(absl::string_view folder) const {
    COMOE_RETURN_IF_ERROR(status_);
    if (num_missing_ == 0) {
      return absl::OkStatus();
    }
    std::string text =
        absl::StrCat(folder, ": ", num_missing_, num_missing_ == 1 ? " tensor is" : " tensors are",
                     " missing: ", absl::StrJoin(missing_, ", "));
    if (num_missing_ > missing_.size()) {
      absl::StrAppend(&text, ", ...");
    }
    return absl::InvalidArgumentError(text);
  }

  std::size_t num_found() const { return num_found_; }
  tensor::DType expert_dtype() const { return expert_dtype_; }

 private:
  bool CheckGroup(const ExpectedTensor& expected, const TensorInfo& info) {
    const DTypeGroup group = GroupOf(expected.role);
    if (group == DTypeGroup::kNone) {
      return true;
    }
    const TensorInfo*& first = first_[static_cast<std::size_t>(group)];
    std::int32_t& layer = layer_[static_cast<std::size_t>(group)];
    if (first == nullptr || (group != DTypeGroup::kExperts && layer != expected.layer)) {
      first = &info;
      layer = expected.layer;
    }
    if (group == DTypeGroup::kExperts) {
      expert_dtype_ = first->dtype;
    }
    if (first->dtype == info.dtype) {
      return true;
    }
    status_ = absl::UnimplementedError(absl::StrCat(
        info.file, ": tensor ", Quoted(info.name), ": dtype is ", info.stored_dtype, ", that of ",
        Quoted(first->name), " is ", first->stored_dtype, "; they are packed together and must agree"));
    return false;
  }

  const TensorSource& source_;
  absl::Status status_;
  std::vector<std::string> missing_;
  std::size_t num_missing_ = 0;
  std::size_t num_found_ = 0;
  std::array<const TensorInfo*, 5> first_ = {};
  std::array<std::int32_t, 5> layer_ = {};
  tensor::DType expert_dtype_ = tensor::DType::kBf16;
};

// The folder that the source's files lie in.
std::string FolderOf(const TensorSource& source, const std::vector<std::string>& names) {
  const std::string file = names.empty() ? "" : source.Find(names.front())->file;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "checkpoint" : file.substr(0, slash);
}

// All experts of a layer in one tensor: what transformers 5 holds in memory, and other families in files.
absl::Status RefuseFusedLayout(const TensorSource& source, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".experts.gate_up_proj") || absl::EndsWith(name, ".experts.down_proj")) {
      return absl::UnimplementedError(absl::StrCat(
          source.Find(name)->file, ": tensor ", Quoted(name),
          " holds all experts of a layer at once; supported is one tensor per expert and matrix"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> FindUnexpected(const ModelConfig& config, const std::vector<std::string>& names) {
  absl::flat_hash_set<std::string> expected;
  VisitExpectedTensors(config, [&](const ExpectedTensor& tensor) {
    expected.insert(tensor.name);
    return true;
  });
  std::vector<std::string> unexpected;
  for (const std::string& name : names) {
    // Rotary buffers of old checkpoints are recomputed; a tied head may be stored twice.
    const bool known =
        absl::EndsWith(name, ".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight");
    if (!known && !expected.contains(name)) {
      unexpected.push_back(name);
    }
  }
  return unexpected;
}

}  // namespace

bool IsMatrix(WeightRole role) {
  switch (role) {
    case WeightRole::kFinalNorm:
    case WeightRole::kInputNorm:
    case WeightRole::kPostAttentionNorm:
    case WeightRole::kQueryBias:
    case WeightRole::kKeyBias:
    case WeightRole::kValueBias:
    case WeightRole::kOutputBias:
    case WeightRole::kQueryNorm:
    case WeightRole::kKeyNorm:
      return false;
    default:
      return true;
  }
}

WeightNames::WeightNames(const ModelConfig& config)
    : embedding_("model.embed_tokens.weight"),
      final_norm_("model.norm.weight"),
      head_(config.tied_embeddings ? embedding_ : "lm_head.weight"),
      mixtral_spelling_(config.model_type == "mixtral") {
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    layers_.push_back(MakeLayerNames(config, l, mixtral_spelling_));
  }
}

FfnNames WeightNames::Expert(base::ExpertKey key) const {
  const std::string prefix = LayerPrefix(key.layer);
  if (!mixtral_spelling_) {
    return ProjectionNames(absl::StrCat(prefix, ".mlp.experts.", key.expert));
  }
  const std::string expert = absl::StrCat(prefix, ".block_sparse_moe.experts.", key.expert);
  return {expert + ".w1.weight", expert + ".w3.weight", expert + ".w2.weight"};
}

void VisitExpectedTensors(const ModelConfig& config, absl::FunctionRef<bool(const ExpectedTensor&)> visit) {
  const WeightNames names(config);
  Visitor visitor(visit);
  visitor.Add(WeightRole::kEmbedding, -1, -1, names.embedding(), {config.vocab_size, config.hidden});
  for (std::int64_t l = 0; l < config.num_layers() && !visitor.stopped(); ++l) {
    VisitLayer(config, names, l, &visitor);
  }
  visitor.Add(WeightRole::kFinalNorm, -1, -1, names.final_norm(), {config.hidden});
  if (!config.tied_embeddings) {
    visitor.Add(WeightRole::kHead, -1, -1, names.head(), {config.vocab_size, config.hidden});
  }
}

absl::StatusOr<TensorReport> CheckTensors(const ModelConfig& config, const TensorSource& source) {
  const std::vector<std::string> names = source.Names();
  COMOE_RETURN_IF_ERROR(RefuseFusedLayout(source, names));
  Checker checker(source);
  VisitExpectedTensors(config,
                       [&checker](const ExpectedTensor& expected) { return checker.Check(expected); });
  COMOE_RETURN_IF_ERROR(checker.Finish(FolderOf(source, names)));
  TensorReport report;
  report.expert_dtype = checker.expert_dtype();
  if (checker.num_found() != names.size()) {
    report.unexpected = FindUnexpected(config, names);
  }
  return report;
}

}  // namespace comoe::checkpoint
