#include "server/engine_thread.h"

#include <thread>

#include "gtest/gtest.h"

namespace comoe::server {
namespace {

TEST(EngineThread, OnlyTheMarkedThreadIsIt) {
  EngineThread::CheckNotCurrent();
  bool marked = false;
  std::thread([&marked] {
    EngineThread::Mark();
    marked = EngineThread::IsCurrent();
  }).join();
  EXPECT_TRUE(marked);
  EXPECT_FALSE(EngineThread::IsCurrent());
}

TEST(EngineThreadDeathTest, ACallIntoGrpcFromItEndsTheProcess) {
  EXPECT_DEATH(
      {
        EngineThread::Mark();
        EngineThread::CheckNotCurrent();
      },
      "makes no gRPC call");
}

}  // namespace
}  // namespace comoe::server
