#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_writer.h"

namespace comoe::cli {
namespace {

struct WidenOptions {
  std::string model;
  std::string out;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  bool quiet = false;
};

absl::Status Widen(const WidenOptions& options) {
  COMOE_ASSIGN_OR_RETURN(
      const CheckpointFolder folder,
      OpenCheckpoint(options.model, absl::StrCat(options.hidden, ",", options.intermediate)));
  COMOE_ASSIGN_OR_RETURN(const std::string config, checkpoint::WithFields(folder.config_json, folder.config));
  Progress progress(absl::StrCat("writing ", options.out), options.quiet);
  checkpoint::WriteOptions write;
  write.copy_from = options.model;
  std::uint64_t bytes = 0;
  COMOE_RETURN_IF_ERROR(checkpoint::WriteCheckpoint(*folder.source, options.out, config, write,
                                                    [&](std::uint64_t done, std::uint64_t total) {
                                                      bytes = total;
                                                      progress.UpdateBytes(done, total);
                                                    }));
  std::printf("%s: %s of tensors\n", options.out.c_str(), base::FormatBytes(bytes).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddWidenCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<WidenOptions>();
  CLI::App* command =
      app.add_subcommand("widen", "write a larger checkpoint with a small model's routing and text");
  command->add_option("--model", options->model, "the small checkpoint")->required();
  command->add_option("--hidden", options->hidden, "hidden size of the large one")->required();
  command->add_option("--intermediate", options->intermediate, "intermediate size of its experts")
      ->required();
  command->add_option("--out", options->out, "folder to write")->required();
  command->add_flag("--quiet", options->quiet, "no progress on stderr");
  command->callback([options, &result] { result = Widen(*options); });
}

}  // namespace comoe::cli
