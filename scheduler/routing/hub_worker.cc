#include "scheduler/routing/hub_worker.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/base/sync.h"

namespace comoe::routing {
namespace {

// A few layers' worth: a predictor that is further behind is of no use to the step at hand.
constexpr std::size_t kMailboxSize = 64;

enum class Kind : std::uint8_t { kBeginStep, kObserve, kLookahead, kHint };

struct Message {
  Kind kind = Kind::kBeginStep;
  std::uint64_t step = 0;
  std::int32_t layer = 0;
  std::int32_t target = 0;
  std::vector<std::int32_t> ids;  // tokens, or experts
  std::vector<float> logits;
};

struct Published {
  std::uint64_t step = 0;  // 0: never
  Demand demand;
};

class HubWorker final : public DemandForecaster {
 public:
  HubWorker(const TierShape& shape, std::shared_ptr<RowPredictor> predictor, std::int32_t look_ahead)
      : num_experts_(static_cast<std::size_t>(shape.num_experts)),
        moe_layers_(shape.moe_layers),
        next_(static_cast<std::size_t>(shape.num_layers), -1),
        predictor_(std::move(predictor)),
        probabilities_(kMaxForecastRows * num_experts_),
        scores_come_(look_ahead > 0),
        scores_came_(look_ahead > 0),
        mailbox_(kMailboxSize),
        published_(static_cast<std::size_t>(shape.num_layers)),
        hints_(published_.size()) {
    for (std::size_t i = 1; i < moe_layers_.size(); ++i) {
      next_[static_cast<std::size_t>(moe_layers_[i - 1])] = moe_layers_[i];
    }
    const std::size_t num_ids =
        static_cast<std::size_t>(kMaxForecastRows) * static_cast<std::size_t>(shape.experts_per_token);
    for (Message& message : mailbox_) {
      message.ids.reserve(num_ids);
      message.logits.reserve(kMaxForecastRows * num_experts_);
    }
    made_.probability.resize(num_experts_);
    made_.expected_rows.resize(num_experts_);
    given_ = given_hint_ = made_;
    for (Published& published : published_) {
      published.demand = made_;
    }
    for (Published& hint : hints_) {
      hint.demand = made_;
    }
    hint_tokens_.reserve(kMaxForecastRows);
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "hub-predictor");
  }

  ~HubWorker() override {
    {
      const base::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    posted_.Signal();
    thread_.join();
  }

  void BeginStep(absl::Span<const base::TokenId> tokens) override {
    latest_step_.fetch_add(1, std::memory_order_relaxed);
    dropping_ = !Post(Kind::kBeginStep, 0, 0, tokens, {});
  }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    PostOfStep(Kind::kObserve, layer, 0, experts, {});
  }
  void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) override {
    PostOfStep(Kind::kLookahead, layer, target, {}, logits);
  }

  const Demand& Forecast(std::int32_t target) override {
    const base::MutexLock lock(&publish_mutex_);
    const Published& published = published_[static_cast<std::size_t>(target)];
    num_late_ += published.step == latest_step_.load(std::memory_order_relaxed) ? 0 : 1;
    Copy(published.demand, &given_);
    return given_;
  }

  void Hint(absl::Span<const base::TokenId> tokens) override {
    const std::size_t n = std::min<std::size_t>(tokens.size(), kMaxForecastRows);
    Post(Kind::kHint, 0, 0, tokens.first(n), {});
  }
  const Demand* TakeHint(std::int32_t layer) override {
    const base::MutexLock lock(&publish_mutex_);
    Published& hint = hints_[static_cast<std::size_t>(layer)];
    if (hint.step == 0) {
      return nullptr;
    }
    hint.step = 0;
    Copy(hint.demand, &given_hint_);
    return &given_hint_;
  }

  std::uint64_t num_late() const override { return num_late_; }
  std::uint64_t num_dropped() const override { return num_dropped_; }
  bool on_own_thread() const override { return true; }

  void Append(std::vector<std::uint8_t>* bytes) override {
    const base::MutexLock lock(&mutex_);
    WaitUntilIdle();
    predictor_->Append(bytes);
  }
  bool Restore(absl::Span<const std::uint8_t>* bytes) override {
    const base::MutexLock lock(&mutex_);
    WaitUntilIdle();
    return predictor_->Restore(bytes);
  }

 private:
  static void Copy(const Demand& from, Demand* to) {
    std::copy(from.probability.begin(), from.probability.end(), to->probability.begin());
    std::copy(from.expected_rows.begin(), from.expected_rows.end(), to->expected_rows.begin());
  }

  void PostOfStep(Kind kind, std::int32_t layer, std::int32_t target, absl::Span<const std::int32_t> ids,
                  absl::Span<const float> logits) {
    if (dropping_) {
      ++num_dropped_;
    } else {
      dropping_ = !Post(kind, layer, target, ids, logits);
    }
  }

  bool Post(Kind kind, std::int32_t layer, std::int32_t target, absl::Span<const std::int32_t> ids,
            absl::Span<const float> logits) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const base::MutexLock lock(&mutex_);
      if (count_ == kMailboxSize) {
        ++num_dropped_;
        return false;
      }
      Message& message = mailbox_[(first_ + count_) % kMailboxSize];
      message.kind = kind;
      message.step = latest_step_.load(std::memory_order_relaxed);
      message.layer = layer;
      message.target = target;
      message.ids.assign(ids.begin(), ids.end());
      message.logits.assign(logits.begin(), logits.end());
      ++count_;
    }
    posted_.Signal();
    return true;
  }

  void WaitUntilIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (count_ > 0) {
      idle_.Wait(&mutex_);
    }
  }

  void Run() {
    for (;;) {
      Message* message = nullptr;
      {
        const base::MutexLock lock(&mutex_);
        while (count_ == 0 && !stopping_) {
          posted_.Wait(&mutex_);
        }
        if (stopping_) {
          return;
        }
        message = &mailbox_[first_];  // nobody writes there until it is taken out
      }
      Handle(*message);
      {
        const base::MutexLock lock(&mutex_);
        first_ = (first_ + 1) % kMailboxSize;
        --count_;
        if (count_ == 0) {
          idle_.Signal();
        }
      }
    }
  }

  void Handle(const Message& message) {
    switch (message.kind) {
      case Kind::kBeginStep:
        num_rows_ = message.ids.size();
        scores_come_ = std::exchange(scores_came_, false);
        predictor_->BeginStep(message.ids);
        MakeForecast(message, moe_layers_.front());
        break;
      case Kind::kObserve:
        predictor_->Observe(message.layer, message.ids);
        if (!scores_come_) {
          MakeForecast(message, next_[static_cast<std::size_t>(message.layer)]);
        }
        MakeHint(message.layer);
        break;
      case Kind::kLookahead:
        scores_came_ = true;
        predictor_->ObserveLookahead(message.layer, message.target, message.logits);
        MakeForecast(message, message.target);
        break;
      case Kind::kHint:
        hint_tokens_.assign(message.ids.begin(), message.ids.end());
        hints_left_ = moe_layers_.size();
        break;
    }
  }

  void MakeForecast(const Message& message, std::int32_t target) {
    // Nobody waits for a forecast of a step that has ended.
    if (target < 0 || message.step != latest_step_.load(std::memory_order_relaxed)) {
      return;
    }
    const absl::Span<float> rows = absl::MakeSpan(probabilities_).first(num_rows_ * num_experts_);
    predictor_->Forecast(target, rows);
    CombineRows(rows, num_experts_, &made_);
    const base::MutexLock lock(&publish_mutex_);
    Published& published = published_[static_cast<std::size_t>(target)];
    published.step = message.step;
    Copy(made_, &published.demand);
  }

  void MakeHint(std::int32_t layer) {
    if (hints_left_ == 0) {
      return;
    }
    --hints_left_;
    const absl::Span<float> rows = absl::MakeSpan(probabilities_).first(hint_tokens_.size() * num_experts_);
    predictor_->ForecastTokens(hint_tokens_, layer, rows);
    CombineRows(rows, num_experts_, &made_);
    const base::MutexLock lock(&publish_mutex_);
    Published& hint = hints_[static_cast<std::size_t>(layer)];
    hint.step = 1;
    Copy(made_, &hint.demand);
  }

  // Constant.
  const std::size_t num_experts_;
  const std::vector<std::int32_t> moe_layers_;
  std::vector<std::int32_t> next_;  // [num_layers]: the MoE layer after; -1: none

  // Of the worker thread (Append and Restore: while it is idle).
  const std::shared_ptr<RowPredictor> predictor_;
  std::vector<float> probabilities_;
  Demand made_;
  std::vector<base::TokenId> hint_tokens_;
  std::size_t hints_left_ = 0;
  std::size_t num_rows_ = 0;
  bool scores_come_;  // there will be scores in this step, going by the one before
  bool scores_came_;  // in this step

  // Of the engine thread.
  bool dropping_ = false;
  std::uint64_t num_late_ = 0;
  std::uint64_t num_dropped_ = 0;
  Demand given_;
  Demand given_hint_;

  std::atomic<std::uint64_t> latest_step_{0};

  base::Mutex mutex_;
  base::CondVar posted_;
  base::CondVar idle_;
  // A ring. The worker reads the first without the lock; whoever posts writes behind the last.
  std::vector<Message> mailbox_;
  std::size_t first_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  base::Mutex publish_mutex_;
  std::vector<Published> published_ ABSL_GUARDED_BY(publish_mutex_);  // [num_layers]
  std::vector<Published> hints_ ABSL_GUARDED_BY(publish_mutex_);      // [num_layers]; step 0: none

  std::thread thread_;
};

}  // namespace

std::unique_ptr<DemandForecaster> MakeHubWorker(const TierShape& shape,
                                                std::shared_ptr<RowPredictor> predictor,
                                                std::int32_t look_ahead) {
  return std::make_unique<HubWorker>(shape, std::move(predictor), look_ahead);
}

}  // namespace comoe::routing
