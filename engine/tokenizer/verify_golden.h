// Checks a tokenizer against reference encodings and decodings that came with a model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace comoe::tokenizer {

struct GoldenMismatch {
  std::size_t case_index = 0;
  std::string what;  // the golden's field: "ids", "ids_without_special", "decoded", "decoded_with_special"
  std::string expected;
  std::string got;  // or the error
};

struct GoldenReport {
  std::size_t cases = 0;
  std::size_t encodings = 0;  // compared
  std::size_t encodings_equal = 0;
  std::size_t decodings = 0;
  std::size_t decodings_equal = 0;
  std::vector<GoldenMismatch> first_mismatches;  // at most kMaxReportedMismatches

  bool all_equal() const { return encodings == encodings_equal && decodings == decodings_equal; }
};
inline constexpr std::size_t kMaxReportedMismatches = 10;

// `path`: an array of {"text", "ids", "ids_without_special", "decoded", "decoded_with_special"}; "text" and
// "ids" are required, what else a case lacks is not compared. INVALID_ARGUMENT for any other file.
absl::StatusOr<GoldenReport> VerifyGolden(const Tokenizer& tokenizer, const std::string& path);

}  // namespace comoe::tokenizer
