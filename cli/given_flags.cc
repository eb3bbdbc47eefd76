#include "cli/given_flags.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/log.h"

namespace comoe::cli {
namespace {

struct Special {
  const char* flag;
  const char* device;  // "": any
  const char* policy;  // "": any
};
constexpr Special kSpecial[] = {
    {"--cuda-device", "cuda", ""},
    {"--cuda-graphs", "cuda", ""},
    {"--nvtx", "cuda", ""},
    {"--cuda-plugin", "cuda", ""},
    {"--activations", "cuda", ""},
    {"--emulated", "emulated", ""},
    {"--emulated-clock", "emulated", ""},
    {"--copy-computes", "emulated", ""},
    {"--host-computes", "emulated", ""},
    {"--dense-computes", "emulated", ""},
    {"--hub", "", "hub"},
    {"--hub-mode", "", "hub"},
    {"--hub-state", "", "hub"},
};

}  // namespace

void NoteGivenFlags(const CLI::App& app, EngineOptions& options) {
  const bool open = options.device == "auto";
  for (const Special& special : kSpecial) {
    const CLI::Option* option = app.get_option_no_throw(special.flag);
    const bool may_be = open && (special.device == std::string("cuda") ||
                                 (special.policy == std::string("hub") && options.policy.empty()));
    if (option != nullptr && option->count() > 0) {
      (may_be ? options.given_for_card : options.given).push_back(special.flag);
    }
  }
}

void WarnOfIdleFlags(const EngineOptions& options) {
  if (options.device != "cpu" || options.given_for_card.empty()) {
    return;
  }
  base::Logf(base::LogLevel::kWarning, "engine", "%s %s no effect: the device is the cpu%s",
             absl::StrJoin(options.given_for_card, " and "),
             options.given_for_card.size() == 1 ? "has" : "have",
             options.device_reason.empty() ? "" : absl::StrCat(" (", options.device_reason, ")"));
}

bool GivenForPolicy(const EngineOptions& options, absl::string_view policy) {
  const auto was_given = [&options](const Special& special) {
    const auto among = [&special](const std::vector<std::string>& flags) {
      return std::find(flags.begin(), flags.end(), special.flag) != flags.end();
    };
    return among(options.given) || among(options.given_for_card);
  };
  return std::any_of(std::begin(kSpecial), std::end(kSpecial),
                     [&](const Special& special) { return special.policy == policy && was_given(special); });
}

absl::Status CheckGivenFlags(const EngineOptions& options) {
  const std::string policy = PolicyOf(options);
  for (const Special& special : kSpecial) {
    if (std::find(options.given.begin(), options.given.end(), special.flag) == options.given.end()) {
      continue;
    }
    if (const std::string device = special.device; !device.empty() && options.device != device) {
      return absl::InvalidArgumentError(absl::StrCat(special.flag, " needs --device ", device,
                                                     ", and the device is ", options.device,
                                                     ": leave it out, or choose that device"));
    }
    if (const std::string wanted = special.policy; !wanted.empty() && policy != wanted) {
      return absl::InvalidArgumentError(absl::StrCat(special.flag, " needs --policy ", wanted,
                                                     ", and the policy is ", policy,
                                                     ": leave it out, or choose that policy"));
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::cli
