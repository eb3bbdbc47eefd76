#include "tests/support/fake_engine.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"

namespace comoe::testing {
namespace {

using Kind = api::CacheGroup::Kind;

FakeEngineOptions WithDefaults(FakeEngineOptions options) {
  if (options.cache_groups.empty()) {
    api::CacheGroup group;
    group.kind = Kind::kFullKv;
    group.num_layers = 1;
    group.block_tokens = 4;
    options.cache_groups = {group};
    if (options.num_blocks.empty()) {
      options.num_blocks = {static_cast<std::int32_t>((options.max_positions + 3) / 4)};
    }
  }
  return options;
}

api::ModelInfo MakeModelInfo(const FakeEngineOptions& options) {
  api::ModelInfo info;
  info.name = "fake";
  info.architecture = "fake";
  info.vocab_size = options.vocab_size;
  info.context_length = options.max_positions;
  info.eos_token_ids = options.eos_token_ids;
  info.cache_groups = options.cache_groups;
  return info;
}

api::EngineCapacity MakeCapacity(const FakeEngineOptions& options) {
  api::EngineCapacity capacity;
  capacity.max_rows = options.max_rows;
  capacity.max_sequences = options.max_sequences;
  capacity.num_blocks = options.num_blocks;
  capacity.max_positions = options.max_positions;
  return capacity;
}

std::uint64_t Hash(absl::Span<const base::TokenId> history, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const base::TokenId token : history) {
    hash = base::RandomBits(hash, static_cast<std::uint64_t>(static_cast<std::int64_t>(token)));
  }
  return hash;
}

std::int64_t NumRows(const api::PlanSpan& span) { return static_cast<std::int64_t>(span.tokens.size()); }

}  // namespace

FakeEngine::FakeEngine(FakeEngineOptions options)
    : model_info_(MakeModelInfo(WithDefaults(options))), capacity_(MakeCapacity(WithDefaults(options))) {
  base::MutexLock lock(&mutex_);
  for (std::size_t i = 0; i < model_info_.cache_groups.size(); ++i) {
    const api::CacheGroup& group = model_info_.cache_groups[i];
    const std::int32_t cells = group.kind == Kind::kRecurrent ? 1 : group.block_tokens;
    pools_.emplace_back(static_cast<std::size_t>(capacity_.num_blocks[i] * cells));
  }
}

base::TokenId FakeEngine::NextToken(absl::Span<const base::TokenId> history, std::uint64_t seed,
                                    std::int32_t vocab_size, absl::Span<const base::TokenId> masked) {
  auto token = static_cast<base::TokenId>(Hash(history, seed) % static_cast<std::uint64_t>(vocab_size));
  const auto is_masked = [&masked](base::TokenId id) {
    return std::find(masked.begin(), masked.end(), id) != masked.end();
  };
  for (std::int32_t tried = 0; tried < vocab_size && is_masked(token); ++tried) {
    token = (token + 1) % vocab_size;
  }
  return token;
}

api::LogprobRow FakeEngine::Logprobs(absl::Span<const base::TokenId> history, base::TokenId token,
                                     std::int32_t num_top) {
  const auto logprob = [&](base::TokenId id) {
    return -static_cast<float>(Hash(history, static_cast<std::uint64_t>(id)) % 1000) / 100.0F;
  };
  api::LogprobRow row;
  row.logprob = logprob(token);
  for (base::TokenId id = 0; id < num_top; ++id) {
    row.top.push_back({id, logprob(id)});
  }
  return row;
}

absl::StatusOr<api::StepResult> FakeEngine::Step(const api::StepPlan& plan) {
  base::MutexLock lock(&mutex_);
  if (keep_plans_) {
    plans_.push_back(plan);
  }
  CheckPlan(plan);
  const std::int64_t step = num_steps_++;
  WaitUntilPermitted();
  if (!health_.ok()) {
    return health_;
  }
  const auto failure = failures_.find(step);
  if (failure != failures_.end()) {
    for (const api::PlanSpan& span : plan.spans) {
      WriteRows(span, /*rubbish=*/true);
    }
    return failure->second;
  }
  api::StepResult result;
  result.step = plan.step;
  for (std::size_t s = 0; s < plan.spans.size(); ++s) {
    const api::PlanSpan& span = plan.spans[s];
    api::SpanResult answer;
    answer.sequence = span.sequence;
    if (s == failing_span_ && !span_failure_.ok()) {
      answer.status = std::exchange(span_failure_, absl::OkStatus());
      WriteRows(span, /*rubbish=*/true);
      result.spans.push_back(std::move(answer));
      continue;
    }
    WriteRows(span, /*rubbish=*/false);
    const std::vector<base::TokenId> history = ReadHistory(span, span.start_position + NumRows(span));
    if (span.sample.has_value()) {
      answer.token = NextToken(history, span.sample->seed, span.context.masked);
      if (span.top_logprobs >= 0) {
        answer.logprobs = Logprobs(history, *answer.token, span.top_logprobs);
      }
    }
    for (std::size_t i = 0; i < span.score.size(); ++i) {
      const auto seen = static_cast<std::size_t>(span.start_position) + i + 1;
      answer.scores.push_back(
          Logprobs(absl::MakeConstSpan(history).first(seen), span.score[i], span.score_top_logprobs));
    }
    result.spans.push_back(std::move(answer));
  }
  return result;
}

void FakeEngine::HintPrompt(absl::Span<const base::TokenId> tokens) {
  base::MutexLock lock(&mutex_);
  if (keep_plans_) {
    hints_.push_back({num_steps_, {tokens.begin(), tokens.end()}});
  }
}

std::vector<FakeEngine::Hint> FakeEngine::hints() const {
  base::MutexLock lock(&mutex_);
  return hints_;
}

void FakeEngine::WaitUntilPermitted() {
  if (holding_ && permits_ == 0) {
    held_ = true;
    changed_.SignalAll();
    while (holding_ && permits_ == 0) {
      changed_.Wait(&mutex_);
    }
    held_ = false;
  }
  if (holding_) {
    --permits_;
  }
}

void FakeEngine::Report(const api::PlanSpan& span, const std::string& what) {
  violations_.push_back(
      absl::StrCat("sequence ", span.sequence.value, " at ", span.start_position, ": ", what));
}

void FakeEngine::CheckPlan(const api::StepPlan& plan) {
  if (plan.spans.empty() || plan.num_rows() > capacity_.max_rows ||
      static_cast<std::int64_t>(plan.spans.size()) > capacity_.max_sequences) {
    violations_.push_back(
        absl::StrCat("a plan of ", plan.spans.size(), " spans and ", plan.num_rows(), " rows"));
  }
  std::set<base::SequenceId> sequences;
  // A block may be read by several spans, but then none of them writes to it.
  std::map<std::pair<std::size_t, std::int32_t>, int> named;
  std::set<std::pair<std::size_t, std::int32_t>> written;
  for (const api::PlanSpan& span : plan.spans) {
    if (!sequences.insert(span.sequence).second) {
      Report(span, "two spans of one sequence");
    }
    CheckSpan(span);
    for (std::size_t i = 0; i < span.groups.size(); ++i) {
      const std::vector<base::BlockId>& blocks = span.groups[i].blocks;
      const std::int64_t block_tokens = std::max(1, model_info_.cache_groups[i].block_tokens);
      for (std::size_t at = 0; at < blocks.size(); ++at) {
        if (blocks[at] != base::kNoBlock) {
          ++named[{i, blocks[at].value}];
          if (static_cast<std::int64_t>(at) >= span.start_position / block_tokens) {
            written.insert({i, blocks[at].value});
          }
        }
      }
      if (span.groups[i].slot >= 0) {
        ++named[{i, span.groups[i].slot}];
        written.insert({i, span.groups[i].slot});
      }
    }
  }
  for (const auto& [where, count] : named) {
    if (count > 1 && written.contains(where)) {
      violations_.push_back(absl::StrCat("block ", where.second, " of group ", where.first,
                                         " is written, and named ", count, " times"));
    }
  }
}

// What is asked for is what is used.
void FakeEngine::CheckLogits(const api::PlanSpan& span) {
  const api::LogitsMode wanted = !span.score.empty()       ? api::LogitsMode::kAll
                                 : span.sample.has_value() ? api::LogitsMode::kLast
                                                           : api::LogitsMode::kNone;
  if (span.logits != wanted) {
    Report(span, "logits are not asked for as they are used");
  }
  if (span.score.size() > span.tokens.size()) {
    Report(span, "more tokens to score than rows");
  }
  std::vector<base::TokenId> history;
  if (span.sample.has_value() && span.sample->penalises()) {
    history = histories_[span.sequence];
    history.insert(history.end(), span.tokens.begin(), span.tokens.end());
  }
  if (span.context.tokens != history ||
      span.context.num_prompt > static_cast<std::int64_t>(span.context.tokens.size())) {
    Report(span, "the context of the draw is not its history, or not needed");
  }
}

void FakeEngine::CheckSpan(const api::PlanSpan& span) {
  const std::int64_t end = span.start_position + NumRows(span);
  if (span.tokens.empty() || end > capacity_.max_positions) {
    Report(span, absl::StrCat(NumRows(span), " rows"));
  }
  for (const base::TokenId token : span.tokens) {
    if (token < 0 || token >= model_info_.vocab_size) {
      Report(span, absl::StrCat("token ", token));
    }
  }
  if (span.groups.size() != model_info_.cache_groups.size()) {
    Report(span, absl::StrCat(span.groups.size(), " cache groups"));
    return;
  }
  Resume(span);
  CheckLogits(span);
  for (std::size_t i = 0; i < span.groups.size(); ++i) {
    const std::int32_t limit = capacity_.num_blocks[i];
    for (const base::BlockId block : span.groups[i].blocks) {
      if (block.value < -1 || block.value >= limit) {
        Report(span, absl::StrCat("block ", block.value, " of group ", i));
      }
    }
    if (span.groups[i].slot < -1 || span.groups[i].slot >= limit) {
      Report(span, absl::StrCat("slot ", span.groups[i].slot, " of group ", i));
    }
  }
}

void FakeEngine::Resume(const api::PlanSpan& span) {
  std::vector<base::TokenId>& known = histories_[span.sequence];
  const auto start = static_cast<std::size_t>(span.start_position);
  if (known.size() == start) {
    return;
  }
  std::vector<base::TokenId> found;
  for (std::size_t group = 0; group < pools_.size() && start > 0; ++group) {
    const Cell* const cell = CellAt(span, group, span.start_position - 1);
    if (cell != nullptr && cell->position == span.start_position - 1 && cell->history != nullptr) {
      found = *cell->history;
    }
  }
  const std::size_t common = std::min(known.size(), found.size());
  if (found.size() != start ||
      !std::equal(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(common), found.begin())) {
    Report(span,
           absl::StrCat("positions do not go on from ", known.size(), ", and no prefix of it is there"));
  }
  found.resize(start);
  known = std::move(found);
}

FakeEngine::Cell* FakeEngine::CellAt(const api::PlanSpan& span, std::size_t group, std::int64_t position) {
  const api::CacheGroup& kind = model_info_.cache_groups[group];
  const api::GroupState& state = span.groups[group];
  std::int64_t cell = state.slot;
  if (kind.kind != Kind::kRecurrent) {
    const auto index = static_cast<std::size_t>(position / kind.block_tokens);
    const base::BlockId block = index < state.blocks.size() ? state.blocks[index] : base::kNoBlock;
    cell = block == base::kNoBlock
               ? -1
               : static_cast<std::int64_t>(block.value) * kind.block_tokens + position % kind.block_tokens;
  }
  const bool there = cell >= 0 && cell < static_cast<std::int64_t>(pools_[group].size());
  return there ? &pools_[group][static_cast<std::size_t>(cell)] : nullptr;
}

void FakeEngine::WriteRows(const api::PlanSpan& span, bool rubbish) {
  std::vector<base::TokenId>& history = histories_[span.sequence];
  std::vector<std::shared_ptr<const std::vector<base::TokenId>>> histories;  // of each row
  std::vector<base::TokenId> so_far = history;
  for (const base::TokenId token : span.tokens) {
    so_far.push_back(token);
    histories.push_back(std::make_shared<const std::vector<base::TokenId>>(so_far));
  }
  for (std::size_t group = 0; group < pools_.size() && group < span.groups.size(); ++group) {
    const bool recurrent = model_info_.cache_groups[group].kind == Kind::kRecurrent;
    for (std::int64_t row = 0; row < NumRows(span); ++row) {
      const std::int64_t position = span.start_position + row;
      Cell* const cell = CellAt(span, group, position);
      if (cell == nullptr) {
        Report(span, absl::StrCat("group ", group, " has no place for position ", position));
        continue;
      }
      const bool follows = position > 0 && (row == 0 || !rubbish);
      if (recurrent && follows && (cell->sequence != span.sequence || cell->position != position - 1)) {
        Report(span, absl::StrCat("the slot of group ", group, " does not hold the state before ", position));
      }
      const auto index = static_cast<std::size_t>(row);
      *cell = rubbish ? Cell{} : Cell{span.sequence, position, span.tokens[index], histories[index]};
    }
  }
  if (!rubbish) {
    history.insert(history.end(), span.tokens.begin(), span.tokens.end());
  }
}

std::vector<base::TokenId> FakeEngine::ReadHistory(const api::PlanSpan& span, std::int64_t end) {
  const std::vector<base::TokenId>& true_history = histories_[span.sequence];  // up to `end`, after WriteRows
  std::vector<base::TokenId> history = true_history;
  history.resize(static_cast<std::size_t>(end));
  for (std::size_t group = 0; group < pools_.size() && group < span.groups.size(); ++group) {
    const api::CacheGroup& kind = model_info_.cache_groups[group];
    if (kind.kind == Kind::kRecurrent) {
      continue;  // checked while writing
    }
    const bool window = kind.kind == Kind::kWindowKv;
    // What the span's first row sees is the most that must still be there.
    const std::int64_t first =
        window ? std::max<std::int64_t>(0, span.start_position - kind.window_tokens + 1) : 0;
    for (std::int64_t position = first; position < end; ++position) {
      const Cell* const cell = CellAt(span, group, position);
      const bool there = cell != nullptr && cell->position == position && cell->history != nullptr;
      if (!there || !std::equal(cell->history->begin(), cell->history->end(), true_history.begin())) {
        Report(span, absl::StrCat("group ", group, " does not hold position ", position));
      }
      history[static_cast<std::size_t>(position)] = cell == nullptr ? -1 : cell->token;
    }
  }
  return history;
}

absl::Status FakeEngine::Truncate(base::SequenceId sequence, std::int64_t num_tokens) {
  base::MutexLock lock(&mutex_);
  std::vector<base::TokenId>& history = histories_[sequence];
  history.resize(std::min(history.size(), static_cast<std::size_t>(num_tokens)));
  return absl::OkStatus();
}

absl::StatusOr<api::StateSnapshot> FakeEngine::Snapshot(const std::vector<api::GroupState>& /*groups*/,
                                                        std::int64_t /*num_tokens*/) {
  return absl::UnimplementedError("the fake engine takes no snapshots");
}

absl::Status FakeEngine::Restore(const api::StateSnapshot& /*snapshot*/,
                                 const std::vector<api::GroupState>& /*groups*/) {
  return absl::UnimplementedError("the fake engine takes no snapshots");
}

void FakeEngine::Lose(absl::Status status) {
  base::MutexLock lock(&mutex_);
  health_ = std::move(status);
}

absl::Status FakeEngine::health() const {
  base::MutexLock lock(&mutex_);
  return health_;
}

void FakeEngine::FailStep(std::int64_t n, absl::Status status) {
  base::MutexLock lock(&mutex_);
  failures_[num_steps_ + n] = std::move(status);
}

void FakeEngine::FailSpan(std::size_t index, absl::Status status) {
  base::MutexLock lock(&mutex_);
  failing_span_ = index;
  span_failure_ = std::move(status);
}

void FakeEngine::Hold() {
  base::MutexLock lock(&mutex_);
  holding_ = true;
  permits_ = 0;
}

void FakeEngine::Permit(std::int64_t steps) {
  base::MutexLock lock(&mutex_);
  permits_ += steps;
  held_ = false;
  changed_.SignalAll();
}

void FakeEngine::Release() {
  base::MutexLock lock(&mutex_);
  holding_ = false;
  held_ = false;
  changed_.SignalAll();
}

bool FakeEngine::WaitHeld(absl::Duration timeout) {
  base::MutexLock lock(&mutex_);
  while (!held_) {
    if (changed_.WaitWithTimeout(&mutex_, timeout)) {
      return held_;
    }
  }
  return true;
}

std::vector<api::StepPlan> FakeEngine::plans() const {
  base::MutexLock lock(&mutex_);
  return plans_;
}

std::int64_t FakeEngine::num_steps() const {
  base::MutexLock lock(&mutex_);
  return num_steps_;
}

std::vector<std::string> FakeEngine::violations() const {
  base::MutexLock lock(&mutex_);
  return violations_;
}

void FakeEngine::ForgetPlans() {
  base::MutexLock lock(&mutex_);
  plans_.clear();
  keep_plans_ = false;
}

}  // namespace comoe::testing
