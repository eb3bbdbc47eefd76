// A check of flags whose value is a number: CLI::Range lets NaN through, since a NaN compares false with
// everything.
#pragma once

#include <cmath>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace comoe::cli {

inline CLI::Validator FiniteIn(double lowest, double highest) {
  return CLI::Validator(
      [lowest, highest](std::string& text) -> std::string {
        double value = 0.0;
        return absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= lowest && value <= highest
                   ? ""
                   : absl::StrCat("Value ", text, " not in range [", lowest, " - ", highest, "]");
      },
      absl::StrCat("FLOAT in [", lowest, " - ", highest, "]"));
}

}  // namespace comoe::cli
