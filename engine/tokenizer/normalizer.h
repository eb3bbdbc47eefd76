// Normalizers: what is done to a text before added tokens that ask for it are looked for in it.
// Supported: NFC NFD NFKC NFKD StripAccents Strip Lowercase Prepend Replace Nmt ByteLevel Sequence.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/aligned_text.h"
#include "engine/tokenizer/json_fields.h"

namespace comoe::tokenizer {

// Immutable and thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // RESOURCE_EXHAUSTED when the text would grow past its limit or a pattern past its own.
  virtual absl::Status Normalize(AlignedText* text) const = 0;
};

// Null for null. UNIMPLEMENTED names a normalizer that is not supported.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonField& field);

}  // namespace comoe::tokenizer
