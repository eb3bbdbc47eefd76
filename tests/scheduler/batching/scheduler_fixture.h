// A scheduler over a fake engine, and requests for it.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "tests/support/fake_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/recording_metrics.h"
#include "tests/support/recording_observer.h"

namespace comoe::batching {

inline std::vector<base::TokenId> Prompt(std::int64_t length, base::TokenId first = 1) {
  std::vector<base::TokenId> prompt(static_cast<std::size_t>(length));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

inline Request MakeRequest(const std::string& id, std::int64_t prompt_length, std::int64_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = Prompt(prompt_length);
  request.sampling.seed = 5;
  request.stop.max_tokens = max_tokens;
  return request;
}

// A scheduler over a fake engine with a clock that stands still. Ends with a check of everything that shall
// hold whatever a test does.
class SchedulerTest : public ::testing::Test {
 protected:
  void Start(testing::FakeEngineOptions engine = {}, SchedulerOptions options = {}) {
    engine_ = std::make_unique<testing::FakeEngine>(std::move(engine));
    options.now = [this] { return clock_.Now(); };
    scheduler_ = MakeScheduler(*engine_, options, metrics_);
  }

  void TearDown() override {
    if (scheduler_ == nullptr) {
      return;
    }
    engine_->Release();
    scheduler_->Stop(absl::InfinitePast());
    EXPECT_THAT(engine_->violations(), ::testing::IsEmpty());
    EXPECT_EQ(scheduler_->load().running, 0);
    EXPECT_EQ(scheduler_->load().waiting, 0);
    EXPECT_EQ(scheduler_->load().used_blocks, 0);
    EXPECT_EQ(metrics_.Value("requests_running"), 0);
    EXPECT_EQ(metrics_.Value("requests_waiting"), 0);
    EXPECT_EQ(metrics_.num_bad_increments(), 0);
    for (const std::shared_ptr<testing::RecordingObserver>& observer : observers_) {
      EXPECT_EQ(observer->num_finished(), 1);
      EXPECT_EQ(observer->violation(), "");
    }
  }

  std::shared_ptr<testing::RecordingObserver> Submit(Request request) {
    auto observer = std::make_shared<testing::RecordingObserver>();
    const absl::Status status = scheduler_->Submit(std::move(request), observer);
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) {
      observers_.push_back(observer);
    }
    return observer;
  }

  // All of them before the scheduler looks again: they start in one step, so that none finds in memory what
  // another computed, whenever the engine's thread happens to wake.
  std::vector<std::shared_ptr<testing::RecordingObserver>> SubmitTogether(std::vector<Request> requests) {
    std::vector<std::shared_ptr<testing::RecordingObserver>> observers;
    std::vector<Submission> submissions;
    for (Request& request : requests) {
      observers.push_back(std::make_shared<testing::RecordingObserver>());
      submissions.push_back({std::move(request), observers.back()});
    }
    const absl::Status status = scheduler_->SubmitAll(std::move(submissions));
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) {
      observers_.insert(observers_.end(), observers.begin(), observers.end());
    }
    return observers;
  }

  absl::Status Refusal(Request request) {
    return scheduler_->Submit(std::move(request), std::make_shared<testing::RecordingObserver>());
  }

  // What the engine says of this request when it runs alone: the first `count` tokens.
  std::vector<base::TokenId> Expected(const Request& request, std::int64_t count) const {
    std::vector<base::TokenId> history = request.prompt;
    for (std::int64_t i = 0; i < count; ++i) {
      history.push_back(engine_->NextToken(history, request.sampling.seed));
    }
    return {history.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), history.end()};
  }

  testing::ManualClock clock_;
  testing::RecordingMetrics metrics_;
  std::unique_ptr<testing::FakeEngine> engine_;
  std::vector<std::shared_ptr<testing::RecordingObserver>> observers_;
  std::unique_ptr<Scheduler> scheduler_;  // destroyed before what it uses
};

}  // namespace comoe::batching
