// Tokens per second of a whole model without a scheduler: prefill of a prompt, and greedy decode at several
// depths, beside the bytes and the operations that each token takes at least.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/checkpoint_folder.h"
#include "cli/engine_bundle.h"
#include "cli/engine_memory.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "cli/offline.h"
#include "cli/progress.h"
#include "engine/base/bytes.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/device/cpu/cpu_device.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct BenchModelOptions {
  EngineOptions engine;
  std::string threads;
  std::string depths = "0,128,512,1024";
  std::string ids;  // "": the checkpoint's golden_nll.json, or random tokens
  std::int64_t prompt = 512;
  std::int64_t tokens = 128;  // decoded for one number
  std::int64_t repeats = 3;
  bool json = false;
};

// What one token takes at least: each weight that it uses is read once, for a prompt once for all its rows.
struct TokenCost {
  double bytes = 0;
  double flops = 0;
};

struct Measurement {
  std::string work;        // "prefill" or "decode"
  std::int64_t depth = 0;  // positions before the first timed row
  std::int64_t tokens = 0;
  TokenCost cost;
  std::vector<double> rates;  // tokens per second, one for each repeat
};

struct ThreadResult {
  MachineRates machine;
  std::vector<Measurement> measurements;
};

struct Model {
  std::string name;
  std::string dtype;
  checkpoint::ModelConfig config;
  checkpoint::MemoryPlan plan;
  double element_bytes = 2;
};

// Of all layers' matrices, those that a row passes: experts that it is routed to, and everything resident.
double LayerBytesOfRow(const checkpoint::MemoryPlan& plan) {
  return static_cast<double>(plan.experts_per_token_bytes + plan.attention_bytes + plan.router_bytes +
                             plan.shared_bytes + plan.dense_bytes);
}

double AttentionFlops(const Model& model, double positions) {
  return 4.0 * positions *
         static_cast<double>(model.config.num_layers() * model.config.num_heads * model.config.head_dim);
}

TokenCost DecodeCost(const Model& model, std::int64_t depth, std::int64_t tokens) {
  const double positions = static_cast<double>(depth) + 0.5 * static_cast<double>(tokens + 1);
  const double weights = LayerBytesOfRow(model.plan) + static_cast<double>(model.plan.head_bytes);
  return {weights + static_cast<double>(model.plan.vector_bytes) +
              positions * static_cast<double>(model.plan.kv_bytes_per_token),
          2.0 * weights / model.element_bytes + AttentionFlops(model, positions)};
}

// All experts count as read: a prompt of a few hundred rows leaves few out.
TokenCost PrefillCost(const Model& model, std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  const double bytes = static_cast<double>(model.plan.total_bytes - model.plan.embedding_bytes) +
                       n * static_cast<double>(model.plan.kv_bytes_per_token);
  const double head = static_cast<double>(model.plan.head_bytes) / n;  // the last row's logits
  return {bytes / n, 2.0 * (LayerBytesOfRow(model.plan) + head) / model.element_bytes +
                         AttentionFlops(model, 0.5 * (n + 1.0))};
}

absl::StatusOr<Model> ReadModel(const EngineOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const CheckpointFolder folder, OpenCheckpoint(options.model, options.widen));
  const tensor::DType dtype = folder.tensors.expert_dtype;
  COMOE_ASSIGN_OR_RETURN(checkpoint::MemoryPlan plan, PlanMemory(options, folder.config, dtype));
  return Model{folder.name, std::string(tensor::DTypeName(dtype)), folder.config, plan,
               static_cast<double>(tensor::DTypeBytes(dtype))};
}

// At least `count` tokens: text where there is some, since random tokens are routed unlike any text.
absl::StatusOr<std::vector<base::TokenId>> TextIds(const BenchModelOptions& options, std::int64_t count,
                                                   std::int32_t vocab_size) {
  std::string path = options.ids;
  if (path.empty() && IsThere(options.engine.model + "/golden_nll.json")) {
    path = options.engine.model + "/golden_nll.json";
  }
  std::vector<base::TokenId> ids;
  if (!path.empty()) {
    COMOE_ASSIGN_OR_RETURN(const std::vector<std::vector<base::TokenId>> texts,
                           ReadForcedIds(path, vocab_size));
    for (const std::vector<base::TokenId>& text : texts) {
      ids.insert(ids.end(), text.begin(), text.end());
    }
  }
  for (std::uint64_t i = 0; ids.size() < static_cast<std::size_t>(count); ++i) {
    ids.push_back(
        static_cast<base::TokenId>(base::RandomBits(1, i) % static_cast<std::uint64_t>(vocab_size)));
  }
  return ids;
}

api::SamplingParams Greedy() {
  api::SamplingParams sampling;
  sampling.temperature = 0.0F;
  return sampling;
}

absl::StatusOr<double> TimePrefill(OfflineSequence& sequence, absl::Span<const base::TokenId> ids) {
  sequence.Reset();
  absl::Status status;
  const double seconds = Seconds([&] { status = sequence.AppendAndSample(ids, Greedy()).status(); });
  COMOE_RETURN_IF_ERROR(status);
  return static_cast<double>(ids.size()) / seconds;
}

// `tokens` steps after `depth` positions of context.
absl::StatusOr<double> TimeDecode(OfflineSequence& sequence, absl::Span<const base::TokenId> ids,
                                  std::int64_t depth, std::int64_t tokens) {
  sequence.Reset();
  COMOE_RETURN_IF_ERROR(sequence.Append(ids.first(static_cast<std::size_t>(depth))));
  base::TokenId next = ids[static_cast<std::size_t>(depth)];
  absl::Status status;
  const double seconds = Seconds([&] {
    for (std::int64_t i = 0; i < tokens && status.ok(); ++i) {
      const absl::StatusOr<api::SpanResult> result = sequence.AppendAndSample({&next, 1}, Greedy());
      status = result.status();
      next = status.ok() ? *result->token : next;
    }
  });
  COMOE_RETURN_IF_ERROR(status);
  return static_cast<double>(tokens) / seconds;
}

// One warm-up and `repeats` runs of each measurement.
absl::Status MeasureEngine(const BenchModelOptions& options, const Model& model,
                           absl::Span<const std::int64_t> depths, api::Engine& engine,
                           std::vector<Measurement>& measurements) {
  const std::int64_t deepest = *std::max_element(depths.begin(), depths.end());
  const std::int64_t needed = std::max(options.prompt, deepest + options.tokens);
  if (needed > engine.capacity().max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(needed, " positions are needed, ",
                                                   engine.capacity().max_positions,
                                                   " fit: lower --depths, --tokens or --prompt"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<base::TokenId> ids,
                         TextIds(options, needed + 1, engine.model_info().vocab_size));
  OfflineSequence sequence(engine);
  measurements.push_back({"prefill", 0, options.prompt, PrefillCost(model, options.prompt), {}});
  for (const std::int64_t depth : depths) {
    measurements.push_back({"decode", depth, options.tokens, DecodeCost(model, depth, options.tokens), {}});
  }
  Progress progress(absl::StrCat("measuring ", model.name), options.engine.quiet);
  const std::uint64_t total = measurements.size() * static_cast<std::uint64_t>(options.repeats + 1);
  std::uint64_t done = 0;
  for (Measurement& measurement : measurements) {
    for (std::int64_t run = 0; run <= options.repeats; ++run) {
      const absl::StatusOr<double> rate =
          measurement.work == "prefill"
              ? TimePrefill(sequence,
                            absl::MakeConstSpan(ids).first(static_cast<std::size_t>(options.prompt)))
              : TimeDecode(sequence, ids, measurement.depth, options.tokens);
      COMOE_RETURN_IF_ERROR(rate.status());
      if (run > 0) {
        measurement.rates.push_back(*rate);
      }
      progress.Update(++done, total, "runs");
    }
  }
  return absl::OkStatus();
}

// Shares of what the machine can do with as many threads.
double ReadShare(const MachineRates& machine, const Measurement& m) {
  return Median(m.rates) * m.cost.bytes / machine.read_bytes_per_second;
}
double FlopShare(const MachineRates& machine, const Measurement& m) {
  return Median(m.rates) * m.cost.flops / machine.flops_per_second;
}

void PrintText(const Model& model, absl::string_view device, const std::vector<ThreadResult>& results) {
  std::printf("%s (%s), %s a token, %s\n", model.name.c_str(), model.dtype.c_str(),
              base::FormatBytes(model.plan.experts_per_token_bytes + model.plan.resident_bytes -
                                model.plan.embedding_bytes)
                  .c_str(),
              std::string(device).c_str());
  for (const ThreadResult& result : results) {
    std::printf("%s\n", Describe(result.machine).c_str());
  }
  std::printf("\n%7s  %-20s %10s %21s %10s %8s %11s %8s\n", "threads", "work", "tokens/s", "lowest..highest",
              "MB/token", "of read", "MFLOP/token", "of FMA");
  for (const ThreadResult& result : results) {
    for (const Measurement& m : result.measurements) {
      const std::string work = m.work == "prefill" ? absl::StrCat("prefill ", m.tokens)
                                                   : absl::StrCat("decode at depth ", m.depth);
      const auto [lowest, highest] = std::minmax_element(m.rates.begin(), m.rates.end());
      std::printf("%7d  %-20s %10.1f %21s %10.2f %7.0f%% %11.1f %7.0f%%\n", result.machine.threads,
                  work.c_str(), Median(m.rates), absl::StrFormat("%.1f..%.1f", *lowest, *highest).c_str(),
                  m.cost.bytes * 1e-6, 100.0 * ReadShare(result.machine, m), m.cost.flops * 1e-6,
                  100.0 * FlopShare(result.machine, m));
    }
  }
}

void PrintJson(const Model& model, absl::string_view device, const std::vector<ThreadResult>& results) {
  nlohmann::json out = {{"model", model.name},
                        {"dtype", model.dtype},
                        {"device", std::string(device)},
                        {"results", nlohmann::json::array()}};
  for (const ThreadResult& result : results) {
    for (const Measurement& m : result.measurements) {
      out["results"].push_back({{"threads", result.machine.threads},
                                {"work", m.work},
                                {"depth", m.depth},
                                {"tokens", m.tokens},
                                {"tokens_per_second", Median(m.rates)},
                                {"runs", m.rates},
                                {"bytes_per_token", m.cost.bytes},
                                {"flops_per_token", m.cost.flops},
                                {"machine_read_bytes_per_second", result.machine.read_bytes_per_second},
                                {"machine_flops_per_second", result.machine.flops_per_second},
                                {"share_of_read", ReadShare(result.machine, m)},
                                {"share_of_flops", FlopShare(result.machine, m)}});
    }
  }
  std::printf("%s\n", out.dump(2).c_str());
}

absl::Status CheckCounts(const BenchModelOptions& options) {
  const struct {
    const char* flag;
    std::int64_t value;
    std::int64_t high;
  } counts[] = {{"--prompt", options.prompt, 65536},
                {"--tokens", options.tokens, 65536},
                {"--repeats", options.repeats, 1000}};
  for (const auto& count : counts) {
    if (count.value < 1 || count.value > count.high) {
      return absl::InvalidArgumentError(
          absl::StrCat(count.flag, " is ", count.value, ": it lies in [1, ", count.high, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status BenchModel(const BenchModelOptions& options) {
  COMOE_RETURN_IF_ERROR(CheckCounts(options));
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> threads,
                         ParseList("--threads", options.threads, 1, 1024));
  COMOE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> depths,
                         ParseList("--depths", options.depths, 0, 1 << 20));
  COMOE_ASSIGN_OR_RETURN(const Model model, ReadModel(options.engine));
  std::vector<ThreadResult> results;
  {
    const std::unique_ptr<device::Device> host = device::MakeCpuDevice(1);
    COMOE_ASSIGN_OR_RETURN(const ColdMemory memory, ColdMemory::Create(*host));
    for (const std::int64_t count : threads) {
      ThreadResult& result = results.emplace_back();
      COMOE_ASSIGN_OR_RETURN(result.machine, MeasureMachine(memory, static_cast<int>(count)));
    }
  }
  std::string device;
  for (ThreadResult& result : results) {
    EngineOptions engine = options.engine;
    engine.threads = result.machine.threads;
    engine.max_batch_tokens = options.prompt;
    COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(engine));
    device = std::string(bundle->device_description());
    COMOE_RETURN_IF_ERROR(MeasureEngine(options, model, depths, bundle->engine(), result.measurements));
  }
  options.json ? PrintJson(model, device, results) : PrintText(model, device, results);
  return absl::OkStatus();
}

}  // namespace

void AddBenchModelCommand(CLI::App& bench, absl::Status& result) {
  auto options = std::make_shared<BenchModelOptions>();
  options->threads = DefaultThreads();
  CLI::App* command = bench.add_subcommand("model", "prefill and decode of a model, without a server");
  command->add_option("MODEL", options->engine.model, "checkpoint folder")->required();
  command->add_option("--threads", options->threads, "thread counts to measure with")->capture_default_str();
  command->add_option("--depths", options->depths, "positions before the decoded tokens")
      ->capture_default_str();
  command->add_option("--prompt", options->prompt, "tokens of the prefill, one step")->capture_default_str();
  command->add_option("--tokens", options->tokens, "tokens decoded for a number")->capture_default_str();
  command->add_option("--repeats", options->repeats, "runs after a warm-up; their median is reported")
      ->capture_default_str();
  command->add_option(
      "--ids", options->ids,
      "JSON {\"ids\": [[id, ...], ...]}: the text (default: MODEL/golden_nll.json, or random)");
  command->add_option("--widen", options->engine.widen,
                      "HIDDEN,INTERMEDIATE: embed the model in a larger one while loading");
  AddKvFlags(*command, options->engine);
  command->add_flag("--quiet", options->engine.quiet, "no progress on stderr");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = BenchModel(*options); });
}

}  // namespace comoe::cli
