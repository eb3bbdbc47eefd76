// comoe: one program, a subcommand for each job.
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  CLI::App app("CoMoE serves Mixture-of-Experts models over gRPC.", "comoe");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("comoe ") + COMOE_VERSION);
  absl::Status result;
  comoe::cli::AddServeCommand(app, result);
  comoe::cli::AddGenerateCommand(app, result);
  comoe::cli::AddTokenizeCommand(app, result);
  comoe::cli::AddInspectCommand(app, result);
  comoe::cli::AddVerifyCommand(app, result);
  comoe::cli::AddEvalCommand(app, result);
  comoe::cli::AddWidenCommand(app, result);
  comoe::cli::AddHealthCommand(app, result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (!result.ok()) {
    std::fprintf(stderr, "comoe: %s\n", std::string(result.message()).c_str());
    return 1;
  }
  return 0;
}
