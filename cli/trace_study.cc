// `comoe trace study`: how good and how wide forecasts have to be for prefetch to pay.
#include "cli/trace_study.h"

#include <cstdio>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/finite.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/row_predictor.h"

namespace comoe::cli {
namespace {

absl::Status RunStudy(const StudyFlags& flags, StudyKind kind) {
  COMOE_RETURN_IF_ERROR(CheckPlotPath(flags.plot));
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  COMOE_ASSIGN_OR_RETURN(const std::vector<StudyRun> runs, kind == StudyKind::kAccuracy
                                                               ? RunAccuracyStudy(flags, trace)
                                                               : RunWidthStudy(flags, trace));
  if (flags.json) {
    nlohmann::json out = StudyJson(kind, runs);
    out["capacity"] = flags.capacity;
    out["batch"] = flags.batch;
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::printf(
        "%g %% of the experts on the device, batch %d; times in computes of an expert on the device\n",
        100.0 * flags.capacity, flags.batch);
    PrintStudy(kind, runs);
  }
  if (!flags.plot.empty()) {
    COMOE_RETURN_IF_ERROR(WritePlots(flags.plot, StudyPlots(kind, runs)));
    std::fprintf(stderr, "plot: %s\n", flags.plot.c_str());
  }
  return absl::OkStatus();
}

void AddStudy(CLI::App& parent, const char* name, const char* about, StudyKind kind, absl::Status& result) {
  auto flags = std::make_shared<StudyFlags>();
  CLI::App* command = parent.add_subcommand(name, about);
  command->add_option("--trace", flags->trace, "a trace, or a routing_trace.npz");
  command->add_option("--model", flags->model, "the model's folder, for a .npz that lies elsewhere");
  if (kind == StudyKind::kAccuracy) {
    command
        ->add_option("--policy", flags->policies,
                     "simple, which believes every forced guess, and hub, which judges forced forecasts")
        ->capture_default_str();
  } else {
    command
        ->add_option(
            "--predictors", flags->predictors,
            "whose likeliest experts are prefetched, all of them; hub: that policy, asked for as many")
        ->capture_default_str();
  }
  command->add_option("--links", flags->links, "a copy takes as long as this many experts on the device")
      ->capture_default_str();
  command->add_option("--capacity", flags->capacity, "share of the experts in device slots")
      ->check(FiniteIn(1e-6, 1.0))
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "sequences of a step")
      ->check(CLI::Range(1, static_cast<int>(routing::kMaxForecastRows)))
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "at most so many, 0 for all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_option("--host-computes", flags->rates.host_computes, "an expert on the host")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--dense-computes", flags->rates.dense_computes, "all else of a layer")
      ->check(FiniteIn(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--host-lane", flags->rates.host_lane, "misses may be computed on the host");
  command->add_option("--plot", flags->plot, "also draw FILE.svg or FILE.png (gnuplot)");
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--quiet", flags->quiet, "no progress lines");
  command->callback([flags, kind, &result] { result = RunStudy(*flags, kind); });
}

}  // namespace

void AddTraceStudyCommand(CLI::App& trace, absl::Status& result) {
  CLI::App* command = trace.add_subcommand("study", "what forecasts must be like for prefetch to pay");
  command->require_subcommand(1);
  AddStudy(*command, "accuracy", "guesses of forced accuracy, 50 to 100 %", StudyKind::kAccuracy, result);
  AddStudy(*command, "width", "prefetched sets from k experts to all", StudyKind::kWidth, result);
}

}  // namespace comoe::cli
