// What every subcommand provides: a function that registers it and its flags. Its work runs in the callback
// and leaves a status; main prints an error as one line and exits with 1.
#pragma once

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace comoe::cli {

void AddServeCommand(CLI::App& app, absl::Status& result);
void AddHealthCommand(CLI::App& app, absl::Status& result);
void AddGenerateCommand(CLI::App& app, absl::Status& result);
void AddTokenizeCommand(CLI::App& app, absl::Status& result);
void AddInspectCommand(CLI::App& app, absl::Status& result);
void AddVerifyCommand(CLI::App& app, absl::Status& result);
void AddDoctorCommand(CLI::App& app, absl::Status& result);
void AddEvalCommand(CLI::App& app, absl::Status& result);
void AddWidenCommand(CLI::App& app, absl::Status& result);
void AddTraceCommand(CLI::App& app, absl::Status& result);
void AddBenchCommand(CLI::App& app, absl::Status& result);

}  // namespace comoe::cli
