// Any text as config.json: refused with one line, or a config whose sizes can be multiplied without overflow.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/checkpoint/model_config.h"

namespace {

void Require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)comoe::checkpoint::ParseGenerationDefaults(text, "generation.json");
  const auto config = comoe::checkpoint::ParseModelConfig(text, "fuzz.json");
  if (!config.ok()) {
    const auto message = config.status().message();
    Require(message.substr(0, 11) == "fuzz.json: ");
    Require(message.find('\n') == message.npos);
    return 0;
  }
  Require(config->hidden > 0 && config->head_dim > 0 && config->head_dim % 2 == 0 &&
          config->num_layers() > 0);
  Require(config->num_heads % config->num_kv_heads == 0);
  Require(config->experts_per_token > 0 && config->experts_per_token <= config->num_experts);
  Require(config->norm_epsilon > 0 && config->rope.theta > 1 && config->rope.factor > 0);
  const auto plan = comoe::checkpoint::PlanMemory(*config, comoe::tensor::DType::kF32);
  Require(plan.active_parameters <= plan.total_parameters && plan.all_experts_bytes <= plan.total_bytes);
  // A written config means the same when it is read again.
  const auto again = comoe::checkpoint::WithFields(text, *config);
  Require(again.ok());
  const auto reread = comoe::checkpoint::ParseModelConfig(*again, "again.json");
  Require(reread.ok() && reread->hidden == config->hidden && reread->norm_epsilon == config->norm_epsilon);
  return 0;
}
