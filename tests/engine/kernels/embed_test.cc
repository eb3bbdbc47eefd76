// Embed's own conversion of F16 to float; shapes are in op_matrix_test.cc.
#include "engine/kernels/embed.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {
namespace {

// Every F16 there is, subnormals and infinities included.
TEST(EmbedTest, EveryF16) {
  const TestStream one(1);
  constexpr std::int64_t kRowValues = 4096;
  constexpr std::int64_t kTokens = 65'536 / kRowValues;
  std::vector<std::uint16_t> values(kTokens * kRowValues);
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  const tensor::MatrixLayout layout = {tensor::DType::kF16, kTokens, kRowValues};
  const AlignedBytes packed = AllocateAligned(layout.bytes());
  tensor::PackPanels(layout, reinterpret_cast<const std::byte*>(values.data()), packed.get(), 0, 1);
  std::vector<base::TokenId> ids(kTokens);
  std::iota(ids.begin(), ids.end(), 0);
  for (const KernelTable& table : AllCpuKernels()) {
    Matrix out(kTokens, kRowValues);
    ASSERT_TRUE(Embed(table, {ids, {packed.get(), layout}, out.view()}, *one).ok());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float exact = tensor::F16ToFloat(values[i]);
      const auto at = static_cast<std::int64_t>(i);
      const float value = out.at(at / kRowValues, at % kRowValues);
      ASSERT_TRUE(std::isnan(exact) ? std::isnan(value) : SameBits(value, exact))
          << table.name << ": " << values[i] << " gives " << value;
    }
  }
}

}  // namespace
}  // namespace comoe::kernels
