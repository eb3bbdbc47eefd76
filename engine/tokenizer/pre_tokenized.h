// A text on its way through the pre-tokenizers: cut into pieces, some of which already are tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/aligned_text.h"

namespace comoe::tokenizer {

inline constexpr base::TokenId kNoToken = -1;

// Bytes of PreTokenized's text. `token` is kNoToken until the piece is known to be an added token.
struct Piece {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  base::TokenId token = kNoToken;
};

// A stretch of a piece that a splitter has told apart; offsets are within the piece. Segments of a piece
// cover it from left to right without gaps; empty ones are allowed.
struct Segment {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_match = false;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// What becomes of matches: left out, kept alone, joined with a neighbour, or joined with other matches beside
// them. In place; segments that are left out are gone.
void ApplySplitBehavior(SplitBehavior behavior, std::vector<Segment>* segments);

// Not thread-safe. Invariant: pieces are in text order and never empty unless they are tokens.
class PreTokenized {
 public:
  explicit PreTokenized(bool tracked) : text_(tracked) {}

  const AlignedText& text() const { return text_; }
  const std::vector<Piece>& pieces() const { return pieces_; }

  // RESOURCE_EXHAUSTED when the text gets too long.
  absl::Status Append(const AlignedText& from, std::size_t begin, std::size_t end, base::TokenId token);

  // Replaces each piece that is no token by what `split` and `behavior` make of it. `split` gets an empty
  // vector.
  using Splitter = absl::FunctionRef<absl::Status(absl::string_view piece, std::vector<Segment>* segments)>;
  absl::Status Split(SplitBehavior behavior, Splitter split);

  // Replaces the text of each piece that is no token by what `rewrite` appends to `out` for bytes [begin,
  // end) of `from`.
  using Rewriter =
      absl::FunctionRef<void(const AlignedText& from, std::size_t begin, std::size_t end, AlignedText* out)>;
  absl::Status Rewrite(Rewriter rewrite);

 private:
  AlignedText text_;
  std::vector<Piece> pieces_;
};

}  // namespace comoe::tokenizer
