// Post-processors: which special tokens are put around an encoding.
// Supported: TemplateProcessing BertProcessing RobertaProcessing ByteLevel Sequence (with one of the first
// three).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/json_fields.h"

namespace comoe::tokenizer {

// One piece of the result: the encoded text, or a special token's ids.
struct TemplatePiece {
  bool is_text = false;
  std::vector<base::TokenId> ids;
};

// The pieces in order; just the text for null and for processors that add nothing. Pairs of texts are not
// encoded here, so their templates are not read. Ids must be below `id_end`.
absl::StatusOr<std::vector<TemplatePiece>> ParsePostProcessor(const JsonField& field, base::TokenId id_end);

}  // namespace comoe::tokenizer
