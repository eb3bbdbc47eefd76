// Sends generation requests to a server and takes the time of everything that comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"

namespace comoe::cli {

// Lengths in tokens: "128", "16-512" (each as likely) or "exp:200" (exponential with that mean, at least 1).
struct LengthDistribution {
  enum class Kind { kFixed, kUniform, kExponential };
  Kind kind = Kind::kFixed;
  std::int64_t low = 1;   // or the only one, or the mean
  std::int64_t high = 1;  // of kUniform

  // `unit` in [0, 1) is the draw.
  std::int64_t Draw(double unit) const;
};
// INVALID_ARGUMENT names the flag and the forms.
absl::StatusOr<LengthDistribution> ParseLengths(absl::string_view flag, absl::string_view text);

struct LoadOptions {
  std::string server = "127.0.0.1:50051";
  std::int64_t clients = 8;        // closed loop: each sends its next request when the last one has ended
  double requests_per_second = 0;  // above 0: open loop with Poisson arrivals instead
  std::int64_t requests = 64;      // in all
  LengthDistribution prompt_tokens;
  LengthDistribution output_tokens;
  std::vector<base::TokenId> text_tokens;  // prompts are pieces of it; empty: random ids
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 0;  // of lengths, pieces, arrivals and sampling: the same seed sends the same requests
  double temperature = 1.0;
  bool ignore_eos = true;  // completions as long as asked for
  absl::Duration timeout = absl::InfiniteDuration();
};

struct LoadProgress {
  std::int64_t ended = 0;
  std::int64_t in_flight = 0;
  std::int64_t output_tokens = 0;
};

// Seconds, one for each thing measured.
struct LoadResult {
  double seconds = 0;  // from the first request to the last end
  std::int64_t requests = 0;
  std::map<std::string, std::int64_t> errors;  // by gRPC code
  std::string first_error;                     // in the server's words
  std::int64_t prompt_tokens = 0;              // of requests that ended well
  std::int64_t output_tokens = 0;              // of all
  std::int64_t most_in_flight = 0;
  std::vector<double> first_token;  // from sending to the first token
  std::vector<double> inter_token;  // between messages with tokens, by the tokens in the later one
  std::vector<double> end_to_end;   // of requests that ended well
};

// Blocks until every request has ended; `progress` is called on this thread about ten times a second.
// UNAVAILABLE: no server there.
absl::StatusOr<LoadResult> GenerateLoad(const LoadOptions& options,
                                        const std::function<void(const LoadProgress&)>& progress);

}  // namespace comoe::cli
