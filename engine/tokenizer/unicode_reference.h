// The reference library's marks, normalisation data and punctuation come from Unicode versions older than
// ours, and a model saw in training what they make of a text. These are the code points that they treat
// otherwise.
#pragma once

namespace comoe::tokenizer {

// A mark of Unicode 15 that is none in the reference (its combining class is 0 there too), or the reverse.
bool IsMarkOtherwiseInReference(char32_t c);
// Decomposes in Unicode 15, but not in the reference.
bool IsWholeInReference(char32_t c);
// Punctuation of Unicode 15 that is none in the reference, or the reverse.
bool IsPunctuationOtherwiseInReference(char32_t c);

}  // namespace comoe::tokenizer
