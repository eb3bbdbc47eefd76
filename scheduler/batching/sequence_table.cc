#include "scheduler/batching/sequence_table.h"

#include <utility>

#include "engine/base/check.h"

namespace comoe::batching {
namespace {

bool MayFollow(SequenceState from, SequenceState to) {
  switch (to) {
    case SequenceState::kWaiting:
      return from == SequenceState::kPrefilling || from == SequenceState::kDecoding;
    case SequenceState::kPrefilling:
      return from == SequenceState::kWaiting;
    case SequenceState::kDecoding:
      return from == SequenceState::kPrefilling;
    case SequenceState::kFinished:
      return from != SequenceState::kFinished;
  }
  return false;
}

}  // namespace

void Sequence::MoveTo(SequenceState next) {
  COMOE_CHECK(MayFollow(state, next), "a sequence waits, prefills, decodes, and finishes once");
  state = next;
}

void SequenceTable::Add(std::unique_ptr<Sequence> sequence) {
  const base::SequenceId id = sequence->id;
  const bool added = sequences_.emplace(id, std::move(sequence)).second;
  COMOE_CHECK(added, "sequence ids are never reused");
}

Sequence* SequenceTable::Find(base::SequenceId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Sequence> SequenceTable::Remove(base::SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  return sequence;
}

std::vector<Sequence*> SequenceTable::InOrder() {
  std::vector<Sequence*> result;
  for (const auto& [id, sequence] : sequences_) {
    result.push_back(sequence.get());
  }
  return result;
}

std::vector<const Sequence*> SequenceTable::InOrder() const {
  std::vector<const Sequence*> result;
  for (const auto& [id, sequence] : sequences_) {
    result.push_back(sequence.get());
  }
  return result;
}

}  // namespace comoe::batching
