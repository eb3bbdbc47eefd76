#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint_folder.h"
#include "cli/command.h"
#include "cli/engine_memory.h"
#include "cli/engine_options.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/memory_plan.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct InspectOptions {
  EngineOptions engine;
  bool json = false;
};

struct Part {
  std::string name;
  std::uint64_t bytes = 0;
};

std::vector<Part> PartsOf(const checkpoint::MemoryPlan& plan, std::uint64_t kv_bytes) {
  return {{"routed experts", plan.all_experts_bytes},
          {"embedding and head", plan.embedding_bytes + plan.head_bytes},
          {"attention", plan.attention_bytes},
          {"routers", plan.router_bytes},
          {"shared experts", plan.shared_bytes},
          {"dense FFNs", plan.dense_bytes},
          {"norms and biases", plan.vector_bytes},
          {"keys and values", kv_bytes}};
}

std::uint64_t Sum(const std::vector<Part>& parts) {
  std::uint64_t sum = 0;
  for (const Part& part : parts) {
    sum += part.bytes;
  }
  return sum;
}

std::string Count(std::uint64_t parameters) {
  const auto value = static_cast<double>(parameters);
  return value < 1e6   ? absl::StrFormat("%.1f K", value * 1e-3)
         : value < 1e9 ? absl::StrFormat("%.1f M", value * 1e-6)
                       : absl::StrFormat("%.1f B", value * 1e-9);
}

void PrintText(const CheckpointFolder& folder, const checkpoint::MemoryPlan& plan,
               const std::vector<Part>& parts, const base::HostMemory& host) {
  const checkpoint::ModelConfig& c = folder.config;
  const auto line = [](const std::string& name, const std::string& value) {
    std::printf("%-24s %s\n", name.c_str(), value.c_str());
  };
  line("model", absl::StrCat(folder.name, " (", c.model_type, ", ",
                             tensor::DTypeName(folder.tensors.expert_dtype), ")"));
  line("parameters",
       absl::StrCat(Count(plan.total_parameters), ", of which a token uses ", Count(plan.active_parameters)));
  line("layers", absl::StrCat(c.num_layers(), ", ", plan.num_sparse_layers, " of them with experts"));
  line("experts", absl::StrCat(c.num_experts, " a layer, ", c.experts_per_token, " a token, ",
                               Count(plan.expert_parameters), " parameters each"));
  line("hidden, heads",
       absl::StrCat(c.hidden, ", ", c.num_heads, " of ", c.head_dim, " (", c.num_kv_heads, " KV)"));
  line("context, vocabulary", absl::StrCat(c.context_length, ", ", c.vocab_size));
  line("bytes of one expert", base::FormatBytes(plan.expert_bytes));
  line("bytes a token reads",
       absl::StrCat(base::FormatBytes(plan.experts_per_token_bytes), " of experts, ",
                    base::FormatBytes(plan.resident_bytes - plan.embedding_bytes), " resident"));
  line("KV of one token", base::FormatBytes(plan.kv_bytes_per_token));
  std::printf("\n%-24s %12s  %s\n", "part", "bytes", "place (device cpu)");
  const std::uint64_t sum = Sum(parts);
  for (const Part& part : parts) {
    if (part.bytes > 0) {
      std::printf("%-24s %12s  host memory\n", part.name.c_str(), base::FormatBytes(part.bytes).c_str());
    }
  }
  std::printf("%-24s %12s  of %s available here (%s)%s\n", "sum", base::FormatBytes(sum).c_str(),
              base::FormatBytes(host.available_bytes).c_str(), host.source.c_str(),
              sum > host.available_bytes ? ": does NOT fit" : "");
}

void PrintJson(const CheckpointFolder& folder, const checkpoint::MemoryPlan& plan,
               const std::vector<Part>& parts, const base::HostMemory& host) {
  const checkpoint::ModelConfig& c = folder.config;
  nlohmann::json out = {{"name", folder.name},
                        {"architecture", c.model_type},
                        {"dtype", std::string(tensor::DTypeName(folder.tensors.expert_dtype))},
                        {"total_parameters", plan.total_parameters},
                        {"active_parameters", plan.active_parameters},
                        {"layers", c.num_layers()},
                        {"moe_layers", plan.num_sparse_layers},
                        {"experts", c.num_experts},
                        {"experts_per_token", c.experts_per_token},
                        {"hidden", c.hidden},
                        {"expert_intermediate", c.expert_intermediate},
                        {"context_length", c.context_length},
                        {"vocab_size", c.vocab_size},
                        {"expert_bytes", plan.expert_bytes},
                        {"all_expert_bytes", plan.all_experts_bytes},
                        {"expert_bytes_per_token", plan.experts_per_token_bytes},
                        {"resident_bytes", plan.resident_bytes},
                        {"kv_bytes_per_token", plan.kv_bytes_per_token},
                        {"available_bytes", host.available_bytes},
                        {"fits", Sum(parts) <= host.available_bytes},
                        {"parts", nlohmann::json::array()}};
  for (const Part& part : parts) {
    out["parts"].push_back({{"name", part.name}, {"bytes", part.bytes}, {"place", "host"}});
  }
  std::printf("%s\n", out.dump(2).c_str());
}

absl::Status Inspect(const InspectOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const CheckpointFolder folder,
                         OpenCheckpoint(options.engine.model, options.engine.widen));
  const base::HostMemory host = base::ReadHostMemory();
  COMOE_ASSIGN_OR_RETURN(const checkpoint::MemoryPlan plan,
                         PlanMemory(options.engine, folder.config, folder.tensors.expert_dtype));
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options.engine, folder.config, plan, host));
  const std::vector<Part> parts = PartsOf(plan, kv_bytes);
  if (options.json) {
    PrintJson(folder, plan, parts, host);
  } else {
    PrintText(folder, plan, parts, host);
  }
  return absl::OkStatus();
}

}  // namespace

void AddInspectCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "facts of a checkpoint, and where its parts would lie");
  command->add_option("DIR", options->engine.model, "the checkpoint folder, as --model");
  AddEngineFlags(*command, options->engine);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = Inspect(*options); });
}

}  // namespace comoe::cli
