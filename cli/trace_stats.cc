// `comoe trace stats`: what the routing of a model looks like.
#include "scheduler/routing/trace_stats.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/trace.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct StatsFlags {
  std::string trace;
  std::string model;
  bool json = false;
};

constexpr std::array<std::int32_t, 3> kWindows = {32, 64, 128};
constexpr std::array<std::int32_t, 5> kBatches = {1, 2, 4, 8, 16};

void Print(const routing::Trace& trace, const routing::RoutingShape& shape) {
  std::printf("%s: %d MoE layers of %d experts, top-%d; %zu sequences, %lld rows\n",
              trace.header.model.c_str(), trace.header.num_moe_layers(), trace.header.num_experts,
              trace.header.experts_per_token, trace.sequences.size(),
              static_cast<long long>(trace.num_rows()));
  std::printf("\nlayer  share of hottest tenth  entropy, bits (uniform %.2f)\n", shape.uniform_bits);
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    std::printf("%5d  %21.1f%%  %13.2f\n", trace.header.moe_layers[i], 100.0 * shape.layers[i].hottest_share,
                shape.layers[i].entropy_bits);
  }
  std::printf(" mean  %21.1f%%  %13.2f\n", 100.0 * shape.hottest_share, shape.entropy_bits);
  std::printf("\noverlap of hot sets, the quarter of a layer's experts used most (by chance %.2f)\n",
              shape.chance_overlap);
  std::printf("tokens  next window of the text  another text\n");
  for (const routing::RoutingShape::Drift& drift : shape.drift) {
    std::printf("%6d  %23.2f  %12.2f\n", drift.window_tokens, drift.next_window, drift.other_text);
  }
  std::printf("\nbatch  distinct experts a layer  if drawn by chance\n");
  for (const routing::RoutingShape::Distinct& distinct : shape.distinct) {
    std::printf("%5d  %24.1f  %18.1f\n", distinct.batch, distinct.experts, distinct.uniform);
  }
}

nlohmann::json ToJson(const routing::Trace& trace, const routing::RoutingShape& shape) {
  nlohmann::json out = {{"model", trace.header.model},
                        {"sequences", trace.sequences.size()},
                        {"rows", trace.num_rows()},
                        {"experts", trace.header.num_experts},
                        {"experts_per_token", trace.header.experts_per_token},
                        {"hottest_tenth_share", shape.hottest_share},
                        {"entropy_bits", shape.entropy_bits},
                        {"uniform_bits", shape.uniform_bits},
                        {"chance_overlap", shape.chance_overlap}};
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    out["layers"].push_back({{"layer", trace.header.moe_layers[i]},
                             {"hottest_tenth_share", shape.layers[i].hottest_share},
                             {"entropy_bits", shape.layers[i].entropy_bits}});
  }
  for (const routing::RoutingShape::Drift& drift : shape.drift) {
    out["drift"].push_back({{"window_tokens", drift.window_tokens},
                            {"next_window", drift.next_window},
                            {"other_text", drift.other_text}});
  }
  for (const routing::RoutingShape::Distinct& distinct : shape.distinct) {
    out["distinct"].push_back(
        {{"batch", distinct.batch}, {"experts", distinct.experts}, {"uniform", distinct.uniform}});
  }
  return out;
}

absl::Status RunStats(const StatsFlags& flags) {
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  const routing::RoutingShape shape = routing::DescribeRouting(trace, kWindows, kBatches);
  if (flags.json) {
    std::printf("%s\n", ToJson(trace, shape).dump(2).c_str());
  } else {
    Print(trace, shape);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceStatsCommand(CLI::App& trace, absl::Status& result) {
  auto flags = std::make_shared<StatsFlags>();
  CLI::App* command = trace.add_subcommand("stats", "how uneven, steady and alike the routing is");
  command->add_option("--trace", flags->trace, "a trace, or a routing_trace.npz");
  command->add_option("--model", flags->model, "the model's folder, for a .npz that lies elsewhere");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, &result] { result = RunStats(*flags); });
}

}  // namespace comoe::cli
