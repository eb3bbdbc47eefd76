#include "cli/verify.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/command.h"
#include "cli/engine_bundle.h"
#include "cli/json_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/verify_golden.h"

namespace comoe::cli {
namespace {

struct VerifyOptions {
  EngineOptions engine;
  std::string directory;  // the positional spelling of --model
  std::int64_t trace_sequences = 0;
  bool json = false;
};

void Print(const std::vector<Check>& checks, bool json, const std::string& directory) {
  if (!json) {
    for (const Check& check : checks) {
      std::printf("%s %s: %s\n", check.passed ? "PASS" : "FAIL", check.name.c_str(), check.detail.c_str());
    }
    return;
  }
  nlohmann::json out = {{"directory", directory}, {"checks", nlohmann::json::array()}};
  for (const Check& check : checks) {
    out["checks"].push_back({{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  }
  std::printf("%s\n", out.dump(2).c_str());
}

absl::Status VerifyTokenizer(const std::string& directory, std::vector<Check>& checks) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                         tokenizer::Tokenizer::Load(directory + "/tokenizer.json"));
  COMOE_ASSIGN_OR_RETURN(const tokenizer::GoldenReport report,
                         tokenizer::VerifyGolden(*tokenizer, directory + "/golden.json"));
  const std::string cases = absl::StrCat(" equal, ", report.cases, " cases with and without special tokens");
  checks.push_back({"golden.json encodings", report.encodings_equal == report.encodings,
                    absl::StrCat(report.encodings_equal, " of ", report.encodings, cases)});
  checks.push_back({"golden.json decodings", report.decodings_equal == report.decodings,
                    absl::StrCat(report.decodings_equal, " of ", report.decodings, cases)});
  for (const tokenizer::GoldenMismatch& mismatch : report.first_mismatches) {
    checks.push_back({absl::StrCat("golden.json[", mismatch.case_index, "].", mismatch.what), false,
                      absl::StrCat("expected ", mismatch.expected, ", got ", mismatch.got)});
  }
  return absl::OkStatus();
}

absl::Status VerifyModel(const VerifyOptions& options, bool has_logits, std::vector<Check>& checks) {
  const std::string& directory = options.engine.model;
  EngineOptions engine_options = options.engine;
  RoutingLog log;
  engine_options.routing_observer = [&log](const api::RoutingObservation& observation) {
    log.Observe(observation);
  };
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(engine_options));
  OfflineSequence sequence(bundle->engine());
  const VerifyContext context{directory, sequence, bundle->engine(), options.engine.quiet};
  const auto add = [&checks](absl::StatusOr<std::vector<Check>> found) {
    if (found.ok()) {
      checks.insert(checks.end(), found->begin(), found->end());
    }
    return found.status();
  };
  if (has_logits) {
    COMOE_RETURN_IF_ERROR(add(VerifyLogits(context)));
  }
  if (IsThere(directory + "/golden_greedy.json")) {
    COMOE_RETURN_IF_ERROR(add(VerifyGreedy(context)));
  }
  if (IsThere(directory + "/golden_nll.json")) {
    COMOE_RETURN_IF_ERROR(add(VerifyNll(context)));
  }
  if (IsThere(directory + "/routing_trace.npz") && options.engine.widen.empty()) {
    COMOE_RETURN_IF_ERROR(add(VerifyRouting(context, log, options.trace_sequences)));
  }
  return absl::OkStatus();
}

absl::Status Verify(const VerifyOptions& options) {
  const std::string& directory = options.engine.model;
  bool has_golden = IsThere(directory + "/golden.json");
  bool tokenizer_cases = false;
  if (has_golden) {
    COMOE_ASSIGN_OR_RETURN(const nlohmann::json golden, ReadJsonFile(directory + "/golden.json"));
    tokenizer_cases = golden.is_array();
  }
  std::vector<Check> checks;
  if (tokenizer_cases) {
    COMOE_RETURN_IF_ERROR(VerifyTokenizer(directory, checks));
  }
  const bool has_references =
      (has_golden && !tokenizer_cases) || IsThere(directory + "/golden_greedy.json") ||
      IsThere(directory + "/golden_nll.json") || IsThere(directory + "/routing_trace.npz");
  if (has_references && IsThere(directory + "/config.json")) {
    COMOE_RETURN_IF_ERROR(VerifyModel(options, has_golden && !tokenizer_cases, checks));
  }
  if (checks.empty()) {
    return absl::NotFoundError(absl::StrCat("'", directory,
                                            "' holds no references: expected golden.json, "
                                            "golden_greedy.json, golden_nll.json or routing_trace.npz"));
  }
  Print(checks, options.json, directory);
  std::size_t failed = 0;
  for (const Check& check : checks) {
    failed += check.passed ? 0 : 1;
  }
  if (failed > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(failed, " of ", checks.size(), " checks failed for '", directory, "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckAndVerify(VerifyOptions& options) {
  if (!options.directory.empty() && !options.engine.model.empty()) {
    return absl::InvalidArgumentError("DIR and --model are two spellings of one thing: give one of them");
  }
  if (options.engine.model.empty()) {
    options.engine.model = options.directory;
  }
  if (options.engine.model.empty()) {
    return absl::InvalidArgumentError(
        "what shall be verified? Name a folder with a model or tokenizer and its references");
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.engine.model, error)) {
    return absl::NotFoundError(absl::StrCat("there is no folder '", options.engine.model, "'"));
  }
  return Verify(options);
}

}  // namespace

void AddVerifyCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand("verify", "check a model against the references in its folder");
  command->add_option("DIR", options->directory, "folder with the model or tokenizer and its references");
  AddEngineFlags(*command, options->engine);
  command
      ->add_option("--trace-sequences", options->trace_sequences,
                   "sequences of routing_trace.npz to run, 0 for all")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = CheckAndVerify(*options); });
}

}  // namespace comoe::cli
