// `comoe trace record`: a model's routing over given texts.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/forced_texts.h"
#include "cli/progress.h"
#include "cli/trace.h"
#include "cli/trace_model.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/memory_plan.h"
#include "engine/experts/packed_file.h"
#include "scheduler/routing/trace_recorder.h"

namespace comoe::cli {
namespace {

struct RecordOptions {
  EngineOptions engine;
  std::string trace;
  TextFlags texts;
  std::int64_t max_sequences = 0;  // 0: all
  std::int64_t max_tokens = 0;     // of each; 0: all
  std::int32_t lookahead = 0;
  bool weights = true;
};

// One text, in chunks of rows, as sequence `id`.
absl::Status RunText(api::Engine& engine, absl::Span<const base::TokenId> text, std::uint64_t id,
                     std::uint64_t* next_step, const absl::Status& written) {
  const auto chunk = static_cast<std::size_t>(engine.capacity().max_rows);
  for (std::size_t at = 0; at < text.size(); at += chunk) {
    api::StepPlan plan;
    plan.step = {(*next_step)++};
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = {id};
    span.start_position = static_cast<std::int64_t>(at);
    const absl::Span<const base::TokenId> part = text.subspan(at, chunk);
    span.tokens.assign(part.begin(), part.end());
    for (const std::int32_t num_blocks : engine.capacity().num_blocks) {
      api::GroupState& group = span.groups.emplace_back();
      for (std::int32_t block = 0; block < num_blocks; ++block) {
        group.blocks.push_back({block});
      }
    }
    COMOE_ASSIGN_OR_RETURN(const api::StepResult result, engine.Step(plan));
    COMOE_RETURN_IF_ERROR(result.spans.front().status);
    COMOE_RETURN_IF_ERROR(written);
  }
  return absl::OkStatus();
}

absl::Status Record(const RecordOptions& options) {
  if (options.trace.empty() || options.texts.path().empty()) {
    return absl::InvalidArgumentError(
        "give --trace FILE, to be written, and the texts: --text FILE, plain text, or --force-ids FILE, JSON "
        "{\"ids\": [[id, ...], ...]}, a routing_trace.npz or a trace");
  }
  COMOE_RETURN_IF_ERROR(CheckEngineOptions(options.engine));
  COMOE_ASSIGN_OR_RETURN(routing::TraceHeader header,
                         DescribeForTrace(options.engine.model, options.engine.widen));
  header.has_weights = options.weights;
  header.lookahead = std::min(options.lookahead, header.num_moe_layers() - 1);
  header.lookahead_width =
      header.lookahead > 0 ? std::min(2 * header.experts_per_token, header.num_experts) : 0;
  header.has_scores = header.lookahead > 0;
  COMOE_ASSIGN_OR_RETURN(Texts texts, ReadTexts(options.texts, options.engine.model, header.vocab_size));
  if (options.max_sequences > 0 && texts.size() > static_cast<std::size_t>(options.max_sequences)) {
    texts.resize(static_cast<std::size_t>(options.max_sequences));
  }
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::TraceWriter> writer,
                         routing::TraceWriter::Create(options.trace, header));
  EngineOptions engine_options = options.engine;
  absl::Status written;
  bool ahead_seen = header.lookahead == 0;
  engine_options.wrap_director = [&](std::unique_ptr<api::ExpertDirector> inner) {
    return routing::MakeStepRecorder(std::move(inner), header, [&](const routing::TraceStepRecord& step) {
      ahead_seen = ahead_seen || std::any_of(step.ahead.begin(), step.ahead.end(), [](std::uint16_t expert) {
                     return expert != routing::kNoExpert;
                   });
      written.Update(writer->Append(step));
    });
  };
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(engine_options));
  Progress progress(absl::StrCat("recording ", header.model), options.engine.quiet);
  std::uint64_t next_step = 0;
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    absl::Span<const base::TokenId> text = texts[i];
    const std::int64_t limit =
        options.max_tokens > 0 ? options.max_tokens : bundle->engine().capacity().max_positions;
    text = text.first(std::min(
        text.size(), static_cast<std::size_t>(std::min(limit, bundle->engine().capacity().max_positions))));
    COMOE_RETURN_IF_ERROR(RunText(bundle->engine(), text, i, &next_step, written));
    rows += text.size();
    progress.Update(i + 1, texts.size(), "texts");
  }
  if (writer->num_rows() != rows) {
    return absl::InternalError(
        absl::StrCat("the engine told of ", writer->num_rows(), " rows, not of ", rows));
  }
  if (!ahead_seen) {
    return absl::UnimplementedError("this engine computes no look-ahead scores: record with --lookahead 0");
  }
  COMOE_RETURN_IF_ERROR(writer->Finish());
  std::printf(
      "%s: %s, %zu texts, %llu rows in %llu steps, %d MoE layers of %d experts, top-%d, look-ahead %d\n",
      options.trace.c_str(), header.model.c_str(), texts.size(),
      static_cast<unsigned long long>(writer->num_rows()),
      static_cast<unsigned long long>(writer->num_steps()), header.num_moe_layers(), header.num_experts,
      header.experts_per_token, header.lookahead);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<routing::TraceHeader> DescribeForTrace(const std::string& directory,
                                                      const std::string& widen) {
  COMOE_ASSIGN_OR_RETURN(const CheckpointFolder folder, OpenCheckpoint(directory, widen));
  routing::TraceHeader header;
  header.model = folder.name;
  header.vocab_size = static_cast<std::int32_t>(folder.config.vocab_size);
  header.num_layers = static_cast<std::int32_t>(folder.config.num_layers());
  for (std::int32_t layer = 0; layer < header.num_layers; ++layer) {
    if (folder.config.layers[static_cast<std::size_t>(layer)].sparse) {
      header.moe_layers.push_back(layer);
    }
  }
  header.num_experts = static_cast<std::int32_t>(folder.config.num_experts);
  header.experts_per_token = static_cast<std::int32_t>(folder.config.experts_per_token);
  header.expert_bytes = checkpoint::PlanMemory(folder.config, folder.tensors.expert_dtype).expert_bytes;
  COMOE_ASSIGN_OR_RETURN(header.model_hash, experts::ModelHash(*folder.source, folder.config,
                                                               checkpoint::WeightNames(folder.config)));
  COMOE_RETURN_IF_ERROR(base::Annotate(routing::CheckTraceHeader(header), directory));
  return header;
}

void AddTraceRecordCommand(CLI::App& trace, absl::Status& result) {
  auto options = std::make_shared<RecordOptions>();
  CLI::App* command = trace.add_subcommand("record", "run a model over texts and write its routing");
  AddEngineFlags(*command, options->engine);
  command->add_option("--trace", options->trace, "the file to write");
  AddTextFlags(*command, options->texts, "");
  command->add_option("--max-sequences-in-file", options->max_sequences, "the first N texts only, 0 for all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--tokens", options->max_tokens, "the first N tokens of each only, 0 for all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command
      ->add_option("--lookahead", options->lookahead,
                   "also record what the routers of the next W layers say when applied early")
      ->check(CLI::Range(0, routing::kMaxTraceLookahead))
      ->capture_default_str();
  command->add_flag("!--no-weights", options->weights, "without the experts' weights");
  command->callback([options, &result] { result = Record(*options); });
}

}  // namespace comoe::cli
