#include "engine/tokenizer/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

constexpr int kCodePoints = 256 + 68;

struct Alphabet {
  std::array<std::array<char, 2>, 256> utf8{};
  std::array<std::uint8_t, 256> length{};
  std::array<std::int16_t, kCodePoints> byte{};  // by code point, -1: not in the alphabet
};

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (std::int16_t& byte : alphabet.byte) {
    byte = -1;
  }
  int moved = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : 256 + moved++;
    const auto at = static_cast<std::size_t>(byte);
    alphabet.byte[static_cast<std::size_t>(code_point)] = static_cast<std::int16_t>(byte);
    if (code_point < 0x80) {
      alphabet.utf8[at][0] = static_cast<char>(code_point);
      alphabet.length[at] = 1;
    } else {
      alphabet.utf8[at][0] = static_cast<char>(static_cast<unsigned char>(0xC0 | (code_point >> 6)));
      alphabet.utf8[at][1] = static_cast<char>(static_cast<unsigned char>(0x80 | (code_point & 0x3F)));
      alphabet.length[at] = 2;
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

absl::string_view ByteLevelCharacter(std::uint8_t byte) {
  return absl::string_view(kAlphabet.utf8[byte].data(), kAlphabet.length[byte]);
}

std::optional<std::string> ByteLevelBytes(absl::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t i = 0; i < token.size();) {
    const char32_t c = NextCodePoint(token, &i);
    if (c >= kCodePoints || kAlphabet.byte[c] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(kAlphabet.byte[c])));
  }
  return bytes;
}

}  // namespace comoe::tokenizer
