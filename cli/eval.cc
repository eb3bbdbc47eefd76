#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cli/command.h"
#include "cli/engine_bundle.h"
#include "cli/json_file.h"
#include "cli/offline.h"
#include "cli/verify.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

struct EvalOptions {
  EngineOptions engine;
  std::string ids;
  bool json = false;
};

absl::Status Eval(const EvalOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBundle> bundle, LoadEngine(options.engine));
  COMOE_ASSIGN_OR_RETURN(const NllFile file,
                         ReadNllFile(options.ids, bundle->engine().model_info().vocab_size));
  OfflineSequence sequence(bundle->engine());
  std::int64_t tokens = 0;
  COMOE_ASSIGN_OR_RETURN(
      const double nll,
      MeanNll({options.engine.model, sequence, bundle->engine(), options.engine.quiet}, file.ids, &tokens));
  if (options.json) {
    const nlohmann::json out = {{"nll", nll}, {"tokens", tokens}, {"sequences", file.ids.size()}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf("%.6f mean negative log-likelihood of %lld tokens in %zu sequences\n", nll,
                static_cast<long long>(tokens), file.ids.size());
  }
  return absl::OkStatus();
}

}  // namespace

void AddEvalCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand("eval", "mean negative log-likelihood of token sequences");
  AddEngineFlags(*command, options->engine);
  command->add_option("--ids", options->ids, "JSON: {\"ids\": [[id, ...], ...]}")->required();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &result] { result = Eval(*options); });
}

}  // namespace comoe::cli
