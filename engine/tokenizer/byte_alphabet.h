// The byte-level alphabet of GPT-2: every byte as one printable code point, so that a vocabulary over bytes
// can be written as text. Bytes that are printable in Latin-1 stand for themselves, the other 68 for U+0100
// onwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace comoe::tokenizer {

// The code point's UTF-8, one or two bytes.
absl::string_view ByteLevelCharacter(std::uint8_t byte);
// The bytes that `token` spells, or nothing when one of its code points is not in the alphabet.
std::optional<std::string> ByteLevelBytes(absl::string_view token);

}  // namespace comoe::tokenizer
