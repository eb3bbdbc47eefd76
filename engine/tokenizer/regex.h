// One compiled regular expression (PCRE2, Unicode, JIT where the machine has it) behind Oniguruma's syntax.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace comoe::tokenizer {

struct RegexMatch {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// What one FindAll may cost. A pattern comes from a file and a text from a request, and some pairs of the two
// need exponential or quadratic time; they end in RESOURCE_EXHAUSTED instead.
struct RegexLimits {
  std::uint32_t match_limit = 20'000'000;  // backtracking steps from one start position
  std::uint32_t stack_bytes = 64u << 20;   // of backtracking state
  absl::Duration base_time = absl::Seconds(2);
  absl::Duration time_per_mebibyte = absl::Seconds(2);
};

// Immutable and thread-safe; a Matcher is one thread's working memory and must not outlive its Regex.
class Regex {
 public:
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(absl::string_view pattern, RegexLimits limits = {});
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // All matches from left to right, without overlap; an empty match directly behind the previous match is
    // left out. `text` must be valid UTF-8; anchors and lookbehind see nothing outside of it.
    absl::Status FindAll(absl::string_view text, std::vector<RegexMatch>* matches);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Compiled;
  Regex(std::unique_ptr<Compiled> compiled, RegexLimits limits);

  std::unique_ptr<Compiled> compiled_;
  RegexLimits limits_;
};

}  // namespace comoe::tokenizer
