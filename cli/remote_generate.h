// `comoe generate --server ADDR`: one completion from a server, streamed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::cli {

// What is asked for, here or there. An absent field takes the model's default.
struct RemoteGenerateOptions {
  std::string prompt;
  std::int64_t max_tokens = 128;
  bool greedy = false;  // goes before temperature
  std::optional<std::uint64_t> seed;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
};

// Asks the server at `address` (HOST:PORT) and writes the text to `out` as it comes, and a newline at its
// end. The status is the RPC's; text that came before an error stays written.
absl::Status RemoteGenerate(absl::string_view address, const RemoteGenerateOptions& options, std::FILE* out);

}  // namespace comoe::cli
