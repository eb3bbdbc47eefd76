// Finds the first of several strings in text that comes in pieces, and holds back no more of it than could
// still become one.
//
// The first is the one that ends first; of those that end at the same byte, the longest. So it depends on the
// text alone, not on the pieces. What is held back is exactly the longest suffix that is a proper prefix of a
// string. Both fall out of the Aho-Corasick automaton: its state is the longest suffix of the text that
// begins a string, so its depth is what must wait, and a string has ended where a state is one or has one as
// a suffix. A byte costs a constant amortised (a failure link undoes one of the steps that built the depth).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::server {

// Immutable, so thread-safe: one for all choices of a request. About 24 bytes a byte of the strings.
class StopStrings {
 public:
  // None of them empty. Valid UTF-8, if pieces cut at the matcher's bounds shall be.
  explicit StopStrings(absl::Span<const std::string> strings);

  const std::vector<std::string>& strings() const { return strings_; }

 private:
  friend class StopMatcher;
  static constexpr std::int32_t kNone = -1;
  // A node is a prefix of a string; 0 is the empty one.
  struct Node {
    unsigned char byte = 0;             // that led here
    std::int32_t first_child = kNone;   // children are a linked list: there are at most as many as strings
    std::int32_t next_sibling = kNone;  //
    std::int32_t fail = 0;              // the longest proper suffix that is a node
    std::int32_t depth = 0;             // length of the prefix
    std::int32_t match = kNone;         // the longest string that is a suffix of this
  };

  void Insert(std::int32_t index);
  void LinkFailures();
  std::int32_t ChildOf(std::int32_t node, unsigned char byte) const;
  std::int32_t Step(std::int32_t node, unsigned char byte) const;

  const std::vector<std::string> strings_;
  std::vector<Node> nodes_;  // constant after construction
};

// Thread-compatible.
class StopMatcher {
 public:
  // With `include_match`, the string that was found is put out, too.
  StopMatcher(std::shared_ptr<const StopStrings> strings, bool include_match);

  // Appends to `out` what of the joined text is certain by now. True: a string has been found; `out` has got
  // all that comes before it, and nothing may be pushed any more.
  bool Push(absl::string_view text, std::string* out);
  // Appends what was held back: no string has been found.
  void Flush(std::string* out);

  bool matched() const { return matched_ >= 0; }
  // Which was found. Precondition: matched().
  const std::string& match() const { return strings_->strings()[static_cast<std::size_t>(matched_)]; }

 private:
  const std::shared_ptr<const StopStrings> strings_;
  const bool include_match_;
  std::int32_t node_ = 0;
  std::int32_t matched_ = -1;
  std::string held_;  // what node_ stands for
};

}  // namespace comoe::server
