#include "server/connection_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_util.h"
#include "tests/support/recording_metrics.h"

namespace comoe::server {
namespace {

using ::testing::HasSubstr;

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// The other side has closed the connection.
bool IsClosed(int fd) {
  char byte = 0;
  return recv(fd, &byte, 1, 0) == 0;
}

// What the gate has handed over, to be closed as the library would.
class Taken {
 public:
  ConnectionGate::HandOver Take() {
    return [this](int /*listener_fd*/, int fd) {
      base::MutexLock lock(&mutex_);
      fds_.push_back(fd);
    };
  }
  std::size_t size() {
    base::MutexLock lock(&mutex_);
    return fds_.size();
  }
  void CloseOne() {
    base::MutexLock lock(&mutex_);
    close(fds_.back());
    fds_.pop_back();
  }
  ~Taken() {
    while (size() > 0) {
      CloseOne();
    }
  }

 private:
  base::Mutex mutex_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mutex_);
};

TEST(ConnectionGateTest, OneTooManyIsClosedAndRoomIsNoticed) {
  testing::RecordingMetrics metrics;
  Taken taken;
  const std::unique_ptr<ConnectionGate> gate = ConnectionGate::Listen("127.0.0.1:0", 2, metrics).value();
  gate->Start(taken.Take());
  std::vector<int> clients = {Connect(gate->port()), Connect(gate->port())};
  ASSERT_TRUE(Eventually([&] { return taken.size() == 2; }));
  const int third = Connect(gate->port());
  EXPECT_TRUE(IsClosed(third));
  close(third);
  EXPECT_EQ(metrics.Value("connections_refused_total"), 1);
  EXPECT_TRUE(Eventually([&] { return metrics.Value("connections") == 2; }));
  taken.CloseOne();
  clients.push_back(Connect(gate->port()));
  EXPECT_TRUE(Eventually([&] { return taken.size() == 2; }));
  gate->Stop();
  for (const int client : clients) {
    close(client);
  }
}

TEST(ConnectionGateTest, EveryAddressOfANameHasThePort) {
  testing::RecordingMetrics metrics;
  Taken taken;
  const std::unique_ptr<ConnectionGate> gate = ConnectionGate::Listen("localhost:0", 8, metrics).value();
  gate->Start(taken.Take());
  EXPECT_GT(gate->port(), 0);
  close(Connect(gate->port()));
  EXPECT_TRUE(Eventually([&] { return taken.size() == 1; }));
}

TEST(ConnectionGateTest, ErrorsNameTheAddressAndTheRemedy) {
  testing::RecordingMetrics metrics;
  const std::unique_ptr<ConnectionGate> gate = ConnectionGate::Listen("127.0.0.1:0", 8, metrics).value();
  const std::string taken = absl::StrCat("127.0.0.1:", gate->port());
  for (const std::string& address :
       {taken, std::string("no.such.host.invalid:1"), std::string("192.0.2.1:0")}) {
    const absl::Status status = ConnectionGate::Listen(address, 8, metrics).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("--listen"));
  }
}

}  // namespace
}  // namespace comoe::server
