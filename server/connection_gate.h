// Accepts the connections of a gRPC server up to a number. The library by itself takes them until the process
// has no file descriptor left, and then nobody gets in any more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/metrics_sink.h"

namespace comoe::server {

// Thread-safe. The port is this process' alone (no SO_REUSEPORT).
class ConnectionGate {
 public:
  // Takes the file descriptor of a new connection, which came by `listener_fd`.
  using HandOver = std::function<void(int listener_fd, int fd)>;

  // Binds HOST:PORT, every address of the host; port 0 is any free one. UNAVAILABLE says what is wrong with
  // the address.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Listen(absl::string_view address,
                                                                std::int64_t max_connections,
                                                                base::MetricsSink& metrics);
  // Stops.
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  int port() const { return port_; }
  // Accepts from now on, on a thread of its own. A connection above the number is closed at once, counted and
  // logged. Once.
  void Start(HandOver hand_over);
  // Closes the port. Idempotent; connections that were handed over stay.
  void Stop();

 private:
  ConnectionGate(std::int64_t max_connections, base::MetricsSink& metrics);
  absl::Status Bind(absl::string_view address);
  void Run(const HandOver& hand_over);
  void Accept(int listener, const HandOver& hand_over);
  std::int64_t CountOpen();

  const std::int64_t max_connections_;
  base::Gauge& open_gauge_;
  base::Counter& refused_;
  std::vector<int> listeners_;  // file descriptors
  int stop_event_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
  // Confined to the thread. Which socket a file descriptor was when it was handed over: the library closes it
  // without a word, and then the number is nothing, or another file.
  absl::flat_hash_map<int, ino_t> handed_over_;
};

}  // namespace comoe::server
