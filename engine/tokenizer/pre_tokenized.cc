#include "engine/tokenizer/pre_tokenized.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"

namespace comoe::tokenizer {
namespace {

// Joins neighbours for which `joins(is_match, previous_is_match)`, in the order of the vector. The first
// segment counts as following a non-match, so one that would join it stands alone.
template <typename Joins>
void Fold(std::vector<Segment>* segments, Joins joins) {
  std::vector<Segment> kept;
  kept.reserve(segments->size());
  bool previous_is_match = false;
  for (const Segment& segment : *segments) {
    if (joins(segment.is_match, previous_is_match) && !kept.empty()) {
      Segment& last = kept.back();
      last.begin = std::min(last.begin, segment.begin);
      last.end = std::max(last.end, segment.end);
    } else {
      kept.push_back(segment);
    }
    previous_is_match = segment.is_match;
  }
  *segments = std::move(kept);
}

}  // namespace

void ApplySplitBehavior(SplitBehavior behavior, std::vector<Segment>* segments) {
  const auto match_behind_other = [](bool is_match, bool previous) { return is_match && !previous; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      segments->erase(
          std::remove_if(segments->begin(), segments->end(), [](const Segment& s) { return s.is_match; }),
          segments->end());
      return;
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kContiguous:
      return Fold(segments, [](bool is_match, bool previous) { return is_match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return Fold(segments, match_behind_other);
    case SplitBehavior::kMergedWithNext:
      std::reverse(segments->begin(), segments->end());
      Fold(segments, match_behind_other);
      std::reverse(segments->begin(), segments->end());
      return;
  }
}

absl::Status PreTokenized::Append(const AlignedText& from, std::size_t begin, std::size_t end,
                                  base::TokenId token) {
  COMOE_RETURN_IF_ERROR(CheckWorkingTextSize(text_.size() + (end - begin)));
  if (begin == end && token == kNoToken) {
    return absl::OkStatus();
  }
  Piece piece{static_cast<std::uint32_t>(text_.size()), 0, token};
  text_.AppendRange(from, begin, end);
  piece.end = static_cast<std::uint32_t>(text_.size());
  pieces_.push_back(piece);
  return absl::OkStatus();
}

absl::Status PreTokenized::Split(SplitBehavior behavior, Splitter split) {
  std::vector<Piece> pieces;
  pieces.reserve(pieces_.size());
  std::vector<Segment> segments;
  for (const Piece& piece : pieces_) {
    if (piece.token != kNoToken) {
      pieces.push_back(piece);
      continue;
    }
    segments.clear();
    COMOE_RETURN_IF_ERROR(split(text_.view(piece.begin, piece.end), &segments));
    ApplySplitBehavior(behavior, &segments);
    for (const Segment& segment : segments) {
      if (segment.begin < segment.end) {
        pieces.push_back({static_cast<std::uint32_t>(piece.begin + segment.begin),
                          static_cast<std::uint32_t>(piece.begin + segment.end), kNoToken});
      }
    }
  }
  pieces_ = std::move(pieces);
  return absl::OkStatus();
}

absl::Status PreTokenized::Rewrite(Rewriter rewrite) {
  AlignedText text(text_.tracked());
  text.reserve(text_.size());
  std::vector<Piece> pieces;
  pieces.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const auto begin = static_cast<std::uint32_t>(text.size());
    if (piece.token == kNoToken) {
      rewrite(text_, piece.begin, piece.end, &text);
    } else {
      text.AppendRange(text_, piece.begin, piece.end);
    }
    COMOE_RETURN_IF_ERROR(CheckWorkingTextSize(text.size()));
    const auto end = static_cast<std::uint32_t>(text.size());
    if (begin < end || piece.token != kNoToken) {
      pieces.push_back({begin, end, piece.token});
    }
  }
  text_ = std::move(text);
  pieces_ = std::move(pieces);
  return absl::OkStatus();
}

}  // namespace comoe::tokenizer
