// Unicode normalisation forms in O(n log n) whatever the text: canonical reordering sorts each run of marks,
// where a plain exchange sort would take minutes for a request that is one long run of them.
#pragma once

#include "engine/tokenizer/aligned_text.h"

namespace comoe::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// A decomposed code point keeps the span of what it came from; a composed one spans all it was made of.
void NormalizeUnicode(NormalForm form, AlignedText* text);

}  // namespace comoe::tokenizer
