#include "server/stop_matcher.h"

#include <utility>

#include "engine/base/check.h"

namespace comoe::server {

StopStrings::StopStrings(absl::Span<const std::string> strings)
    : strings_(strings.begin(), strings.end()), nodes_(1) {
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    Insert(static_cast<std::int32_t>(i));
  }
  LinkFailures();
}

void StopStrings::Insert(std::int32_t index) {
  std::int32_t at = 0;
  for (const char c : strings_[static_cast<std::size_t>(index)]) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t child = ChildOf(at, byte);
    if (child == kNone) {
      child = static_cast<std::int32_t>(nodes_.size());
      Node& parent = nodes_[static_cast<std::size_t>(at)];
      Node node;
      node.byte = byte;
      node.depth = parent.depth + 1;
      node.next_sibling = std::exchange(parent.first_child, child);
      nodes_.push_back(node);
    }
    at = child;
  }
  Node& end = nodes_[static_cast<std::size_t>(at)];
  end.match = end.match == kNone ? index : end.match;  // of equal strings, the first
}

// Breadth first: a node's failure link is shallower than the node, so it is linked already.
void StopStrings::LinkFailures() {
  std::vector<std::int32_t> order = {0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t parent = order[i];
    const std::int32_t first = nodes_[static_cast<std::size_t>(parent)].first_child;
    for (std::int32_t child = first; child != kNone;) {
      Node& node = nodes_[static_cast<std::size_t>(child)];
      if (parent != 0) {
        node.fail = Step(nodes_[static_cast<std::size_t>(parent)].fail, node.byte);
      }
      if (node.match == kNone) {
        node.match = nodes_[static_cast<std::size_t>(node.fail)].match;
      }
      order.push_back(child);
      child = node.next_sibling;
    }
  }
}

std::int32_t StopStrings::ChildOf(std::int32_t node, unsigned char byte) const {
  std::int32_t child = nodes_[static_cast<std::size_t>(node)].first_child;
  while (child != kNone && nodes_[static_cast<std::size_t>(child)].byte != byte) {
    child = nodes_[static_cast<std::size_t>(child)].next_sibling;
  }
  return child;
}

std::int32_t StopStrings::Step(std::int32_t node, unsigned char byte) const {
  while (true) {
    if (const std::int32_t child = ChildOf(node, byte); child != kNone) {
      return child;
    }
    if (node == 0) {
      return 0;
    }
    node = nodes_[static_cast<std::size_t>(node)].fail;
  }
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> strings, bool include_match)
    : strings_(std::move(strings)), include_match_(include_match) {}

bool StopMatcher::Push(absl::string_view text, std::string* out) {
  COMOE_DCHECK(!matched(), "nothing comes after a match");
  std::size_t used = 0;
  while (used < text.size() && !matched()) {
    node_ = strings_->Step(node_, static_cast<unsigned char>(text[used]));
    matched_ = strings_->nodes_[static_cast<std::size_t>(node_)].match;
    ++used;
  }
  held_.append(text.data(), used);
  // A string that was found is the end of what is held back, so all before it was certain.
  std::size_t keep = static_cast<std::size_t>(strings_->nodes_[static_cast<std::size_t>(node_)].depth);
  if (matched()) {
    keep = include_match_ ? 0 : match().size();
  }
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return matched();
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
  node_ = 0;
}

}  // namespace comoe::server
