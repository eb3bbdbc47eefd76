#include "engine/model/rope_table.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "gtest/gtest.h"

namespace comoe::model {
namespace {

using checkpoint::RopeConfig;

TEST(RopeTable, DefaultFrequenciesArePowersOfTheta) {
  RopeConfig config;
  config.theta = 10000.0;
  const RopeTable table(config, 8);
  ASSERT_EQ(table.inverse_frequencies().size(), 4U);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[0], 1.0F);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[1], 0.1F);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[3], 0.001F);
  EXPECT_EQ(table.attention_scaling(), 1.0F);
}

TEST(RopeTable, LinearStretchesEveryFrequency) {
  RopeConfig config;
  config.type = RopeConfig::Type::kLinear;
  config.factor = 2.5;
  const RopeTable table(config, 8);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[1], 0.04F);
}

TEST(RopeTable, Llama3KeepsFastStretchesSlowAndSmoothsBetween) {
  RopeConfig config;
  config.type = RopeConfig::Type::kLlama3;
  config.theta = 500000.0;
  config.factor = 8.0;
  config.original_max_positions = 8192;
  const RopeTable table(config, 128);
  const RopeTable plain(RopeConfig{.theta = 500000.0}, 128);
  int kept = 0;
  int stretched = 0;
  int between = 0;
  for (std::size_t i = 0; i < table.inverse_frequencies().size(); ++i) {
    const double ratio = plain.inverse_frequencies()[i] / table.inverse_frequencies()[i];
    const double wavelength = 2.0 * std::numbers::pi / plain.inverse_frequencies()[i];
    if (wavelength < 8192.0 / 4.0) {
      EXPECT_NEAR(ratio, 1.0, 1e-6);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_NEAR(ratio, 8.0, 1e-5);
      ++stretched;
    } else {
      EXPECT_GT(ratio, 1.0);
      EXPECT_LT(ratio, 8.0);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

TEST(RopeTable, YarnScalesAttentionAndInterpolatesSlowDimensions) {
  RopeConfig config;
  config.type = RopeConfig::Type::kYarn;
  config.factor = 4.0;
  config.original_max_positions = 4096;
  const RopeTable table(config, 64);
  EXPECT_FLOAT_EQ(table.attention_scaling(), static_cast<float>(0.1 * std::log(4.0) + 1.0));
  const RopeTable plain(RopeConfig{}, 64);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[0], plain.inverse_frequencies()[0]);
  EXPECT_FLOAT_EQ(table.inverse_frequencies()[31], plain.inverse_frequencies()[31] / 4.0F);
  config.attention_factor = 0.5;
  EXPECT_FLOAT_EQ(RopeTable(config, 64).attention_scaling(), 0.5F);
}

TEST(RopeTable, FillsCosinesAndSinesOfPositions) {
  const RopeTable table(RopeConfig{}, 4);
  std::vector<float> cos(4);
  std::vector<float> sin(4);
  table.Fill({0, 7}, tensor::HostF32(cos.data(), 2, 2), tensor::HostF32(sin.data(), 2, 2));
  EXPECT_FLOAT_EQ(cos[0], 1.0F);
  EXPECT_FLOAT_EQ(sin[1], 0.0F);
  EXPECT_FLOAT_EQ(cos[2], std::cos(7.0F));
  EXPECT_FLOAT_EQ(sin[3], std::sin(0.07F));
}

}  // namespace
}  // namespace comoe::model
