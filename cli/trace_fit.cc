// `comoe trace fit`: a small classifier over a trace, and whether it pays.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "cli/finite.h"
#include "cli/progress.h"
#include "cli/trace.h"
#include "engine/base/bytes.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/expert_classifier.h"
#include "scheduler/routing/trace_predictors.h"
#include "scheduler/routing/trace_stats.h"

namespace comoe::cli {
namespace {

// So much better recall of a set of 2k, one layer ahead, would be worth a file to keep and a model to
// retrain.
constexpr double kWorthwhile = 0.02;

struct FitFlags {
  std::string trace;
  std::string model;
  std::string out;
  std::string protocol = "halves";
  routing::FitOptions fit;
  bool json = false;
  bool quiet = false;
};

// Recall of the middle width (2k) one layer ahead; 0 if it is not there.
double RecallOf(const std::vector<routing::ForecastQuality>& rows, const std::string& name) {
  for (const routing::ForecastQuality& row : rows) {
    if (row.name == name && row.distance == 1) {
      return row.recall[1];
    }
  }
  return 0.0;
}

struct Verdict {
  bool pays = false;
  std::string text;
};

Verdict JudgeFit(const std::vector<routing::ForecastQuality>& rows) {
  double best = 0.0;
  std::string best_name;
  for (const routing::ForecastQuality& row : rows) {
    if (row.name != "classifier" && RecallOf(rows, row.name) > best) {
      best = RecallOf(rows, row.name);
      best_name = row.name;
    }
  }
  const double own = RecallOf(rows, "classifier");
  Verdict verdict;
  verdict.pays = own >= best + kWorthwhile;
  verdict.text =
      absl::StrFormat("one layer ahead, sets of 2k: classifier %.3f, best of the others (%s) %.3f: it %s",
                      own, best_name, best, verdict.pays ? "pays" : "does not pay, and stays a study");
  return verdict;
}

absl::Status RunFit(const FitFlags& flags) {
  if (flags.out.empty()) {
    return absl::InvalidArgumentError("where to? Give --out FILE");
  }
  COMOE_ASSIGN_OR_RETURN(const routing::Trace trace, LoadTrace(flags.trace, flags.model));
  TraceSplit split = SplitInHalves(trace);
  if (flags.protocol == "study") {
    COMOE_ASSIGN_OR_RETURN(split, SplitAsStudy(trace));
  }
  if (split.history.empty() || trace.header.num_moe_layers() < 2) {
    return absl::InvalidArgumentError(
        "a classifier needs a trace of two sequences at least, half of them to judge by, and two MoE layers");
  }
  constexpr std::int64_t kAll = std::int64_t{1} << 40;
  const auto history = routing::LockstepRows(trace, split.history, 1, kAll);
  const auto judged = routing::LockstepRows(trace, split.judged, 1, kAll);
  Progress progress("fitting", flags.quiet);
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::ExpertClassifier> classifier,
                         routing::ExpertClassifier::Fit(trace, history, flags.fit,
                                                        [&progress](std::uint64_t done, std::uint64_t total) {
                                                          progress.Update(done, total, "rows");
                                                        }));
  const std::string bytes = classifier->Encode();
  routing::JudgeOptions options;
  const std::int32_t k = trace.header.experts_per_token;
  options.widths = {k, 2 * k, 4 * k};
  options.max_distance = flags.fit.distances;
  options.lookahead = routing::RecordedLookahead(trace);
  std::vector<routing::ForecastQuality> rows;
  for (const absl::string_view name : routing::TracePredictorNames()) {
    if (name == "lookahead" && trace.header.lookahead == 0) {
      continue;
    }
    COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<routing::RowPredictor> predictor,
                           routing::MakeTracePredictor(name, trace.Shape(0)));
    const auto judgement = routing::JudgePredictor(trace, history, judged, options, predictor.get());
    rows.insert(rows.end(), judgement.begin(), judgement.end());
  }
  const auto judgement = routing::JudgePredictor(trace, history, judged, options, classifier.get());
  rows.insert(rows.end(), judgement.begin(), judgement.end());
  const Verdict verdict = JudgeFit(rows);
  COMOE_RETURN_IF_ERROR(base::WriteFileAtomically(flags.out, bytes));
  if (flags.json) {
    nlohmann::json out = {{"file", flags.out}, {"bytes", bytes.size()}, {"pays", verdict.pays}};
    for (const routing::ForecastQuality& row : rows) {
      out["forecasts"].push_back({{"predictor", row.name},
                                  {"ahead", row.distance},
                                  {"widths", row.widths},
                                  {"recall", row.recall},
                                  {"precision", row.precision}});
    }
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    PrintForecasts("recall / precision on sequences that were not fitted to", rows);
    std::printf("%s (%s, fitted to %zu sequences, judged on %zu)\n%s\n", flags.out.c_str(),
                base::FormatBytes(bytes.size()).c_str(), split.history.size(), split.judged.size(),
                verdict.text.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceFitCommand(CLI::App& trace, absl::Status& result) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* command = trace.add_subcommand("fit", "fit a small classifier, and say whether it pays");
  command->add_option("--trace", flags->trace, "a trace, or a routing_trace.npz");
  command->add_option("--model", flags->model, "the model's folder, for a .npz that lies elsewhere");
  command->add_option("--out", flags->out, "the file to write");
  command
      ->add_option("--protocol", flags->protocol, "halves: fitted to the first, judged on the second; study")
      ->check(CLI::IsMember({"halves", "study"}))
      ->capture_default_str();
  command->add_option("--distance", flags->fit.distances, "forecasts up to so many MoE layers ahead")
      ->check(CLI::Range(1, routing::kMaxTraceLookahead))
      ->capture_default_str();
  command->add_option("--passes", flags->fit.passes, "over the sequences")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--learning-rate", flags->fit.learning_rate, "of Adagrad")
      ->check(FiniteIn(1e-6, 10.0))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON");
  command->add_flag("--quiet", flags->quiet, "no progress lines");
  command->callback([flags, &result] { result = RunFit(*flags); });
}

}  // namespace comoe::cli
