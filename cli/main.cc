// comoe: one program, a subcommand for each job.
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  // Debian builds Abseil with its lock order checks on, which take a global lock for every other lock. Ours
  // are checked by annotations and by the thread sanitizer.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CLI::App app("CoMoE serves Mixture-of-Experts models over gRPC.", "comoe");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("comoe ") + COMOE_VERSION);
  absl::Status result;
  comoe::cli::AddServeCommand(app, result);
  comoe::cli::AddGenerateCommand(app, result);
  comoe::cli::AddTokenizeCommand(app, result);
  comoe::cli::AddInspectCommand(app, result);
  comoe::cli::AddVerifyCommand(app, result);
  comoe::cli::AddDoctorCommand(app, result);
  comoe::cli::AddEvalCommand(app, result);
  comoe::cli::AddWidenCommand(app, result);
  comoe::cli::AddTraceCommand(app, result);
  comoe::cli::AddBenchCommand(app, result);
  comoe::cli::AddHealthCommand(app, result);
  constexpr int kUsageError = 2;
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "help") {
    std::printf("%s", app.help().c_str());
    return 0;
  }
  if (!first.empty() && first[0] != '-' &&
      app.get_subcommands([&first](const CLI::App* command) { return command->get_name() == first; })
          .empty()) {
    std::fprintf(stderr, "comoe: there is no subcommand '%s'; `comoe --help` lists them\n", first.c_str());
    return kUsageError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (result.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    result = absl::DataLossError("the output could not be written (is the disk full?)");
  }
  if (!result.ok()) {
    std::fprintf(stderr, "comoe: %s\n", std::string(result.message()).c_str());
    return 1;
  }
  return 0;
}
