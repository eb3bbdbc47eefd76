#include "engine/base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "engine/base/sync.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryTaskRunsOnceOnAWorkerOfThePool) {
  ThreadPool pool(GetParam(), "test");
  ASSERT_EQ(pool.num_threads(), GetParam());
  for (const std::int64_t num_tasks : {0, 1, 2, 3, 17, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_tasks));
    std::atomic<bool> strange_worker = false;
    pool.ParallelFor(num_tasks, [&](std::int64_t task, int worker) {
      ++runs[static_cast<std::size_t>(task)];
      if (worker < 0 || worker >= pool.num_threads()) {
        strange_worker = true;
      }
    });
    for (const std::atomic<int>& count : runs) {
      EXPECT_EQ(count, 1);
    }
    EXPECT_FALSE(strange_worker);
  }
}

TEST_P(ThreadPoolTest, AWorkerRunsOneTaskAtATime) {
  ThreadPool pool(GetParam(), "test");
  std::vector<int> busy(static_cast<std::size_t>(GetParam()),
                        0);  // unguarded: the thread sanitizer would see it
  std::vector<std::int64_t> sums(static_cast<std::size_t>(GetParam()), 0);
  for (int repeat = 0; repeat < 200; ++repeat) {
    pool.ParallelFor(20, [&](std::int64_t task, int worker) {
      const auto w = static_cast<std::size_t>(worker);
      EXPECT_EQ(busy[w]++, 0);
      sums[w] += task;
      --busy[w];
    });
  }
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) {
    total += sum;
  }
  EXPECT_EQ(total, 200 * 190);
}

TEST_P(ThreadPoolTest, ResultsAreVisibleToTheCallerAndToTheNextLoop) {
  ThreadPool pool(GetParam(), "a name longer than fifteen bytes");
  std::vector<int> values(100, 0);  // plain ints: ParallelFor orders memory
  for (int repeat = 0; repeat < 100; ++repeat) {
    pool.ParallelFor(100, [&](std::int64_t task, int) { ++values[static_cast<std::size_t>(task)]; });
    pool.ParallelFor(100, [&](std::int64_t task, int) { ++values[static_cast<std::size_t>(99 - task)]; });
  }
  EXPECT_EQ(values, std::vector<int>(100, 200));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

TEST(ThreadPoolTest, TasksRunSideBySide) {
  ThreadPool pool(3, "test");
  Mutex mutex;
  CondVar changed;
  int inside = 0;
  // Each task waits for the other two: this returns only if three threads are at work.
  pool.ParallelFor(3, [&](std::int64_t, int) {
    MutexLock lock(&mutex);
    ++inside;
    changed.SignalAll();
    while (inside < 3) {
      changed.Wait(&mutex);
    }
  });
  EXPECT_EQ(inside, 3);
}

// Workers that have gone to sleep wake up for the next loop, and so does a caller that waits for a long task.
TEST(ThreadPoolTest, SleepersWakeUp) {
  ThreadPool pool(2, "test");
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::atomic<int> inside = 0;
    std::atomic<bool> caller_left = false;
    pool.ParallelFor(2, [&](std::int64_t, int worker) {
      ++inside;
      while (inside < 2) {  // until the worker is awake, too
        std::this_thread::yield();
      }
      if (worker == 1) {  // and the caller, which has nothing left, asleep
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        caller_left = true;
      }
    });
    EXPECT_TRUE(caller_left);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than a worker looks for work
  }
}

// Each sleeper that wakes wakes others: a loop that needs them all, after a sleep and after none, ends.
TEST(ThreadPoolTest, EverySleeperIsReached) {
  constexpr int kThreads = 9;
  ThreadPool pool(kThreads, "test");
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::atomic<int> inside = 0;
    pool.ParallelFor(kThreads, [&](std::int64_t, int) {
      ++inside;
      while (inside < kThreads) {
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(inside, kThreads);
    std::this_thread::sleep_for(std::chrono::milliseconds(repeat % 4 * 2));
  }
}

TEST(ThreadPoolTest, AnUnusedPoolEnds) {
  for (int i = 0; i < 50; ++i) {
    const ThreadPool pool(4, "test");
  }
}

TEST(CondVarTest, AWaitWithTimeoutEndsWithoutASignal) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  EXPECT_TRUE(never.WaitWithTimeout(&mutex, absl::Milliseconds(1)));
}

}  // namespace
}  // namespace comoe::base
