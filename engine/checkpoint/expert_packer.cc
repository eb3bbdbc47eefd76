#include "engine/checkpoint/expert_packer.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/messages.h"
#include "xxhash.h"

namespace comoe::checkpoint {
namespace {

absl::StatusOr<const TensorInfo*> FindTensor(const TensorSource& source, absl::string_view name) {
  const TensorInfo* info = source.Find(name);
  if (info == nullptr) {
    return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " is missing from the checkpoint"));
  }
  return info;
}

// The tensor's bytes, after its shape [n, k] and dtype were checked against what will be read from them.
absl::StatusOr<TensorData> ReadMatrix(const TensorSource& source, const TensorInfo& info, std::int64_t n,
                                      std::int64_t k, tensor::DType dtype) {
  if (info.shape != std::vector<std::int64_t>{n, k} || info.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(info.file, ": tensor ", Quoted(info.name), " is no [", n,
                                                   ", ", k, "] matrix of ",
                                                   std::string(tensor::DTypeName(dtype))));
  }
  COMOE_ASSIGN_OR_RETURN(TensorData data, source.Read(info));
  if (data.bytes.size() != static_cast<std::size_t>(n * k) * tensor::DTypeBytes(dtype)) {
    return absl::InternalError(
        absl::StrCat(info.file, ": tensor ", Quoted(info.name), ": read ", data.bytes.size(), " bytes"));
  }
  return data;
}

// Packs rows of a tensor [n, k] into panels first, first + step, ... of `target`.
absl::Status PackTensor(const TensorSource& source, absl::string_view name,
                        const tensor::MatrixLayout& layout, std::byte* target, std::int64_t first_panel,
                        std::int64_t panel_step) {
  COMOE_ASSIGN_OR_RETURN(const TensorInfo* info, FindTensor(source, name));
  COMOE_ASSIGN_OR_RETURN(const TensorData data, ReadMatrix(source, *info, layout.n, layout.k, layout.dtype));
  tensor::PackPanels(layout, data.bytes.data(), target, first_panel, panel_step);
  source.Release(*info);
  return absl::OkStatus();
}

absl::Status CheckTarget(std::size_t have, std::size_t need) {
  if (have != need) {
    return absl::InternalError(absl::StrCat("packing needs ", need, " bytes of target and was given ", have));
  }
  return absl::OkStatus();
}

std::string KeyText(base::ExpertKey key) { return absl::StrCat("layer ", key.layer, " expert ", key.expert); }

}  // namespace

std::uint64_t BlobChecksum(absl::Span<const std::byte> blob) { return XXH3_64bits(blob.data(), blob.size()); }

ExpertIndex ExpertIndex::Make(const ModelConfig& config, tensor::DType dtype, std::size_t alignment) {
  ExpertIndex index;
  index.layout_ = tensor::BlobLayout::Make(dtype, config.hidden, config.expert_intermediate);
  index.num_experts_ = config.num_experts;
  const std::uint64_t stride = base::AlignUp(index.layout_.bytes, alignment);
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    if (!config.layers[static_cast<std::size_t>(l)].sparse) {
      index.first_entry_.push_back(-1);
      continue;
    }
    index.first_entry_.push_back(static_cast<std::int64_t>(index.entries_.size()));
    for (std::int64_t e = 0; e < config.num_experts; ++e) {
      index.entries_.push_back({index.total_bytes_, index.layout_.bytes, 0});
      index.keys_.push_back({static_cast<std::int32_t>(l), static_cast<std::int32_t>(e)});
      index.total_bytes_ += stride;
    }
  }
  return index;
}

const ExpertEntry* ExpertIndex::Find(base::ExpertKey key) const {
  if (key.layer < 0 || static_cast<std::size_t>(key.layer) >= first_entry_.size() || key.expert < 0 ||
      key.expert >= num_experts_) {
    return nullptr;
  }
  const std::int64_t first = first_entry_[static_cast<std::size_t>(key.layer)];
  return first < 0 ? nullptr : &entries_[static_cast<std::size_t>(first + key.expert)];
}

ExpertEntry* ExpertIndex::Find(base::ExpertKey key) {
  return const_cast<ExpertEntry*>(std::as_const(*this).Find(key));
}

absl::Status ExpertIndex::Verify(base::ExpertKey key, const std::byte* base) const {
  const ExpertEntry* entry = Find(key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("no blob for ", KeyText(key)));
  }
  const std::uint64_t found = BlobChecksum({base + entry->offset, entry->bytes});
  if (found != entry->checksum) {
    return absl::DataLossError(absl::StrFormat("blob of %s: checksum is %016x, recorded was %016x",
                                               KeyText(key), found, entry->checksum));
  }
  return absl::OkStatus();
}

absl::Status PackFfn(const TensorSource& source, const FfnNames& names, const tensor::BlobLayout& layout,
                     absl::Span<std::byte> target) {
  COMOE_RETURN_IF_ERROR(CheckTarget(target.size(), layout.bytes));
  const tensor::MatrixLayout half = {layout.gate_up.dtype, layout.intermediate, layout.hidden};
  std::byte* gate_up = target.data() + layout.gate_up_offset;
  COMOE_RETURN_IF_ERROR(PackTensor(source, names.gate, half, gate_up, 0, 2));
  COMOE_RETURN_IF_ERROR(PackTensor(source, names.up, half, gate_up, 1, 2));
  COMOE_RETURN_IF_ERROR(
      PackTensor(source, names.down, layout.down, target.data() + layout.down_offset, 0, 1));
  // PackPanels fills panels up; what lies between and after the matrices is ours, so that checksums are
  // reproducible.
  const auto clear = [target](std::size_t begin, std::size_t end) {
    std::memset(target.data() + begin, 0, end - begin);
  };
  clear(layout.gate_up_offset + layout.gate_up.bytes(), layout.down_offset);
  clear(layout.down_offset + layout.down.bytes(), layout.bytes);
  return absl::OkStatus();
}

absl::Status PackExpert(const TensorSource& source, const WeightNames& names, base::ExpertKey key,
                        const tensor::BlobLayout& layout, absl::Span<std::byte> target) {
  return base::Annotate(PackFfn(source, names.Expert(key), layout, target), KeyText(key));
}

absl::Status PackExpertInto(const TensorSource& source, const WeightNames& names, base::ExpertKey key,
                            ExpertIndex* index, absl::Span<std::byte> slab) {
  ExpertEntry* entry = index->Find(key);
  if (entry == nullptr || entry->offset + entry->bytes > slab.size()) {
    return absl::InternalError(
        absl::StrCat("no place for ", KeyText(key), " in a slab of ", slab.size(), " bytes"));
  }
  const absl::Span<std::byte> blob = slab.subspan(entry->offset, entry->bytes);
  COMOE_RETURN_IF_ERROR(PackExpert(source, names, key, index->layout(), blob));
  entry->checksum = BlobChecksum(blob);
  return absl::OkStatus();
}

absl::StatusOr<tensor::MatrixLayout> StackedLayout(const TensorSource& source,
                                                   absl::Span<const std::string> names) {
  tensor::MatrixLayout layout;
  for (const std::string& name : names) {
    COMOE_ASSIGN_OR_RETURN(const TensorInfo* info, FindTensor(source, name));
    const bool first = layout.n == 0;
    if (info->shape.size() != 2 || !info->readable ||
        (!first && (info->shape[1] != layout.k || info->dtype != layout.dtype))) {
      return absl::InvalidArgumentError(absl::StrCat(info->file, ": tensor ", Quoted(name),
                                                     " is no matrix that can be "
                                                     "stacked with ",
                                                     Quoted(names.front())));
    }
    layout.dtype = info->dtype;
    layout.k = info->shape[1];
    layout.n += info->shape[0];
  }
  return layout;
}

namespace {

absl::Status CopyRows(const TensorSource& source, absl::Span<const std::string> names,
                      const tensor::MatrixLayout& layout, absl::Span<std::byte> target) {
  std::size_t at = 0;
  for (const std::string& name : names) {
    const TensorInfo* info = source.Find(name);
    COMOE_ASSIGN_OR_RETURN(const TensorData data,
                           ReadMatrix(source, *info, info->shape[0], layout.k, layout.dtype));
    std::memcpy(target.data() + at, data.bytes.data(), data.bytes.size());
    at += data.bytes.size();
    source.Release(*info);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackStacked(const TensorSource& source, absl::Span<const std::string> names,
                         const tensor::MatrixLayout& layout, absl::Span<std::byte> target) {
  COMOE_ASSIGN_OR_RETURN(tensor::MatrixLayout found, StackedLayout(source, names));
  found.order = layout.order;
  if (found != layout) {
    return absl::InternalError(
        absl::StrCat("the layout to pack ", Quoted(names.front()), " into is not its own"));
  }
  COMOE_RETURN_IF_ERROR(CheckTarget(target.size(), layout.bytes()));
  if (layout.order == tensor::MatrixOrder::kRows) {
    return CopyRows(source, names, layout, target);
  }
  std::int64_t row = 0;
  bool panels_match = true;  // each tensor but the last fills whole panels
  for (const std::string& name : names) {
    panels_match = panels_match && row % tensor::kPanelOutputs == 0;
    row += source.Find(name)->shape[0];
  }
  std::vector<std::byte> rows;  // all of them, where panels straddle tensors
  row = 0;
  for (const std::string& name : names) {
    const TensorInfo* info = source.Find(name);
    const std::int64_t n = info->shape[0];
    if (panels_match) {
      COMOE_RETURN_IF_ERROR(PackTensor(source, name, {layout.dtype, n, layout.k}, target.data(),
                                       row / tensor::kPanelOutputs, 1));
    } else {
      COMOE_ASSIGN_OR_RETURN(const TensorData data, ReadMatrix(source, *info, n, layout.k, layout.dtype));
      rows.insert(rows.end(), data.bytes.begin(), data.bytes.end());
      source.Release(*info);
    }
    row += n;
  }
  if (!panels_match) {
    tensor::PackPanels(layout, rows.data(), target.data(), 0, 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadFloats(const TensorSource& source, absl::string_view name) {
  COMOE_ASSIGN_OR_RETURN(const TensorInfo* info, FindTensor(source, name));
  COMOE_ASSIGN_OR_RETURN(const TensorData data, source.Read(*info));
  std::vector<float> values(data.bytes.size() / tensor::DTypeBytes(info->dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor::LoadElement(data.bytes.data(), info->dtype, i);
  }
  source.Release(*info);
  return values;
}

}  // namespace comoe::checkpoint
