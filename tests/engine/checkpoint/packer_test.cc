// What lies in a blob is what the checkpoint holds, for every dtype and for sizes that fill no panel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/checkpoint/expert_packer.h"
#include "engine/tensor/packed_matrix.h"
#include "tests/engine/checkpoint/test_util.h"

namespace comoe::checkpoint {
namespace {

using tensor::BlobLayout;
using tensor::DType;
using tensor::MatrixLayout;
using tensor::PackedMatrixView;

ModelConfig SmallConfig(std::int64_t hidden, std::int64_t intermediate) {
  ModelConfig config;
  config.model_type = "qwen2_moe";
  config.vocab_size = 19;
  config.hidden = hidden;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 6;  // q, k and v have 12, 6 and 6 rows: panels straddle them
  config.expert_intermediate = intermediate;
  config.shared_intermediate = intermediate + 3;
  config.num_experts = 3;
  config.experts_per_token = 2;
  config.qkv_bias = true;
  config.layers.resize(2);
  return config;
}

// Gate output i lies in panel 2 (i / 16), up in the one after.
std::int64_t GateRow(std::int64_t i) { return i / 16 * 32 + i % 16; }

void ExpectBlob(const RandomSource& source, const FfnNames& names, const BlobLayout& layout,
                const std::byte* blob) {
  const tensor::ExpertView view = {blob, &layout};
  const std::int64_t d = layout.hidden;
  const std::int64_t f = layout.intermediate;
  for (std::int64_t i = 0; i < f; ++i) {
    for (std::int64_t k = 0; k < d; ++k) {
      const auto at = static_cast<std::size_t>(i * d + k);
      ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i), k), source.At(names.gate, at)) << i << " " << k;
      ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i) + 16, k), source.At(names.up, at)) << i << " " << k;
      ASSERT_EQ(WeightAt(view.down(), k, i), source.At(names.down, static_cast<std::size_t>(k * f + i)));
    }
  }
  // Fill: outputs beyond F are zero.
  for (std::int64_t i = f; i < (f + 15) / 16 * 16; ++i) {
    for (std::int64_t k = 0; k < d; ++k) {
      ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i), k), 0.0F);
      ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i) + 16, k), 0.0F);
    }
  }
}

TEST(PackExpert, EveryDTypeAndOddSizes) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const auto& [hidden, intermediate] :
         {std::pair{32, 16}, {32, 48}, {17, 5}, {1, 1}, {33, 31}, {16, 17}}) {
      SCOPED_TRACE(std::string(tensor::DTypeName(dtype)) + " " + std::to_string(hidden) + " x " +
                   std::to_string(intermediate));
      const ModelConfig config = SmallConfig(hidden, intermediate);
      const RandomSource source(config, dtype, 7);
      const WeightNames names(config);
      ExpertIndex index = ExpertIndex::Make(config, dtype);
      EXPECT_EQ(index.layout(), BlobLayout::Make(dtype, hidden, intermediate));
      std::vector<std::byte> slab(index.total_bytes(), std::byte{0xab});
      for (const base::ExpertKey key : index.keys()) {
        ASSERT_TRUE(PackExpertInto(source, names, key, &index, absl::MakeSpan(slab)).ok());
      }
      for (const base::ExpertKey key : index.keys()) {
        const ExpertEntry* entry = index.Find(key);
        ASSERT_NE(entry, nullptr);
        EXPECT_EQ(entry->offset % tensor::kWeightAlignment, 0U);
        ExpectBlob(source, names.Expert(key), index.layout(), slab.data() + entry->offset);
        EXPECT_TRUE(index.Verify(key, slab.data()).ok());
      }
      // The shared expert has another width and the same form.
      const BlobLayout shared = BlobLayout::Make(dtype, hidden, config.shared_intermediate);
      std::vector<std::byte> blob(shared.bytes, std::byte{0xab});
      ASSERT_TRUE(PackFfn(source, names.layer(0).shared, shared, absl::MakeSpan(blob)).ok());
      ExpectBlob(source, names.layer(0).shared, shared, blob.data());
    }
  }
}

// Nothing of the target's old bytes survives, so checksums are those of the content.
TEST(PackExpert, EveryByteIsWritten) {
  const ModelConfig config = SmallConfig(17, 5);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const RandomSource source(config, dtype, 7);
    const WeightNames names(config);
    const BlobLayout layout = BlobLayout::Make(dtype, 17, 5);
    std::vector<std::byte> ones(layout.bytes, std::byte{0xff});
    std::vector<std::byte> zeros(layout.bytes, std::byte{0});
    ASSERT_TRUE(PackExpert(source, names, {1, 2}, layout, absl::MakeSpan(ones)).ok());
    ASSERT_TRUE(PackExpert(source, names, {1, 2}, layout, absl::MakeSpan(zeros)).ok());
    EXPECT_EQ(ones, zeros);
    EXPECT_EQ(BlobChecksum(ones), BlobChecksum(zeros));
  }
}

TEST(ExpertIndex, FindsSparseLayersOnlyAndVerifiesChecksums) {
  ModelConfig config = SmallConfig(16, 16);
  config.layers[0].sparse = false;
  config.dense_intermediate = 16;
  const RandomSource source(config, DType::kBf16, 3);
  ExpertIndex index = ExpertIndex::Make(config, DType::kBf16, 4096);
  EXPECT_EQ(index.keys().size(), 3U);
  EXPECT_EQ(index.Find({0, 0}), nullptr);
  EXPECT_EQ(index.Find({1, 3}), nullptr);
  EXPECT_EQ(index.Find({1, -1}), nullptr);
  EXPECT_EQ(index.Find({-1, 0}), nullptr);
  EXPECT_EQ(index.Find({2, 0}), nullptr);
  EXPECT_EQ(index.Find({1, 2})->offset, 2U * 4096);
  EXPECT_EQ(index.total_bytes(), 3U * 4096);
  std::vector<std::byte> slab(index.total_bytes());
  const WeightNames names(config);
  ASSERT_TRUE(PackExpertInto(source, names, {1, 2}, &index, absl::MakeSpan(slab)).ok());
  EXPECT_TRUE(index.Verify({1, 2}, slab.data()).ok());
  EXPECT_EQ(index.Verify({0, 0}, slab.data()).code(), absl::StatusCode::kNotFound);
  slab[2 * 4096 + 77] ^= std::byte{1};
  const absl::Status broken = index.Verify({1, 2}, slab.data());
  EXPECT_EQ(broken.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(broken.message()), ::testing::HasSubstr("layer 1 expert 2"));
  EXPECT_FALSE(PackExpertInto(source, names, {1, 2}, &index, absl::MakeSpan(slab).subspan(0, 100)).ok());
  EXPECT_FALSE(PackExpertInto(source, names, {0, 0}, &index, absl::MakeSpan(slab)).ok());
}

TEST(PackStacked, RowsOfSeveralTensorsFollowEachOther) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const std::int64_t head_dim : {6, 16, 32}) {
      ModelConfig config = SmallConfig(21, 16);
      config.head_dim = head_dim;
      const RandomSource source(config, dtype, 11);
      const LayerNames layer = WeightNames(config).layer(1);
      const std::vector<std::string> names = {layer.query, layer.key, layer.value};
      const auto layout = StackedLayout(source, names);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(*layout, (MatrixLayout{dtype, 4 * head_dim, 21}));
      std::vector<std::byte> packed(layout->bytes(), std::byte{0xcd});
      ASSERT_TRUE(PackStacked(source, names, *layout, absl::MakeSpan(packed)).ok());
      const PackedMatrixView view = {packed.data(), *layout};
      std::int64_t row = 0;
      for (const std::string& name : names) {
        for (std::int64_t n = 0; n < source.Find(name)->shape[0]; ++n, ++row) {
          for (std::int64_t k = 0; k < 21; ++k) {
            ASSERT_EQ(WeightAt(view, row, k), source.At(name, static_cast<std::size_t>(n * 21 + k)));
          }
        }
      }
      for (; row < layout->panels() * 16; ++row) {
        EXPECT_EQ(WeightAt(view, row, 20), 0.0F);
      }
    }
  }
}

TEST(PackStacked, RefusesWhatDoesNotFitTogether) {
  const ModelConfig config = SmallConfig(16, 8);
  const RandomSource source(config, DType::kBf16, 1);
  const LayerNames layer = WeightNames(config).layer(0);
  EXPECT_FALSE(StackedLayout(source, {layer.query, "nothing"}).ok());
  EXPECT_FALSE(StackedLayout(source, {layer.query, layer.output}).ok());
  EXPECT_FALSE(StackedLayout(source, {layer.input_norm}).ok());
  std::vector<std::byte> small(16);
  EXPECT_FALSE(
      PackStacked(source, {layer.query}, *StackedLayout(source, {layer.query}), absl::MakeSpan(small)).ok());
}

TEST(ReadFloats, ConvertsEveryDType) {
  const ModelConfig config = SmallConfig(16, 8);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const RandomSource source(config, dtype, 5);
    const auto floats = ReadFloats(source, "model.norm.weight");
    ASSERT_TRUE(floats.ok());
    ASSERT_EQ(floats->size(), 16U);
    EXPECT_EQ((*floats)[9], source.At("model.norm.weight", 9));
    EXPECT_EQ(ReadFloats(source, "nothing").status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(PackExpert, RealCheckpointEqualsItsTensors) {
  for (const char* name : {"mixtral", "mixtral_f16", "olmoe_clip_f32", "qwen3_moe"}) {
    SCOPED_TRACE(name);
    const auto opened = OpenCheckpoint(FixtureDir(name));
    ASSERT_TRUE(opened.ok()) << opened.status();
    const BlobLayout layout = ExpertIndex::Make(opened->config, opened->report.expert_dtype).layout();
    std::vector<std::byte> blob(layout.bytes);
    const WeightNames names(opened->config);
    ASSERT_TRUE(PackExpert(*opened->source, names, {2, 5}, layout, absl::MakeSpan(blob)).ok());
    const tensor::ExpertView view = {blob.data(), &layout};
    const FfnNames expert = names.Expert({2, 5});
    const auto gate = ReadFloats(*opened->source, expert.gate);
    const auto up = ReadFloats(*opened->source, expert.up);
    const auto down = ReadFloats(*opened->source, expert.down);
    ASSERT_TRUE(gate.ok() && up.ok() && down.ok());
    for (std::int64_t i = 0; i < layout.intermediate; ++i) {
      for (std::int64_t k = 0; k < layout.hidden; ++k) {
        const auto at = static_cast<std::size_t>(i * layout.hidden + k);
        ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i), k), (*gate)[at]);
        ASSERT_EQ(WeightAt(view.gate_up(), GateRow(i) + 16, k), (*up)[at]);
        ASSERT_EQ(WeightAt(view.down(), k, i),
                  (*down)[static_cast<std::size_t>(k * layout.intermediate + i)]);
      }
    }
  }
}

}  // namespace
}  // namespace comoe::checkpoint
