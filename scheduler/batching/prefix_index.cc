#include "scheduler/batching/prefix_index.h"

#include "engine/base/check.h"

namespace comoe::batching {

Prefix* PrefixIndex::Find(std::uint64_t parent, absl::string_view salt,
                          absl::Span<const base::TokenId> tokens) const {
  const auto found = prefixes_.find(Key{parent, parent == 0 ? salt : absl::string_view(), tokens});
  return found == prefixes_.end() ? nullptr : found->get();
}

Prefix* PrefixIndex::FindOrAdd(std::uint64_t parent, absl::string_view salt,
                               absl::Span<const base::TokenId> tokens) {
  if (Prefix* found = Find(parent, salt, tokens); found != nullptr) {
    return found;
  }
  auto prefix = std::make_unique<Prefix>();
  prefix->number = next_number_++;
  prefix->parent = parent;
  prefix->salt = parent == 0 ? std::string(salt) : std::string();
  prefix->tokens.assign(tokens.begin(), tokens.end());
  prefix->blocks.assign(num_groups_, base::kNoBlock);
  return prefixes_.insert(std::move(prefix)).first->get();
}

void PrefixIndex::Erase(const Prefix* prefix) {
  const auto found = prefixes_.find(Key{prefix->parent, prefix->salt, prefix->tokens});
  COMOE_CHECK(found != prefixes_.end() && found->get() == prefix, "a prefix is erased once");
  prefixes_.erase(found);
}

}  // namespace comoe::batching
