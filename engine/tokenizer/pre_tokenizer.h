// Pre-tokenizers: where a text is cut before the model sees its pieces.
// Supported: Split ByteLevel Metaspace Digits Punctuation Whitespace WhitespaceSplit BertPreTokenizer
// CharDelimiterSplit FixedLength Sequence.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/json_fields.h"
#include "engine/tokenizer/pre_tokenized.h"

namespace comoe::tokenizer {

// Immutable and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual absl::Status Apply(PreTokenized* text) const = 0;
  // Whether Apply reads the spans of the text, which must be tracked then.
  virtual bool needs_spans() const { return false; }
};

// Null for null. UNIMPLEMENTED names a pre-tokenizer that is not supported.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const JsonField& field);

}  // namespace comoe::tokenizer
