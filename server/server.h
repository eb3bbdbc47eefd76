// The service as a whole: it listens from the start, serves once a model has answered a warm-up, and ends in
// order.
//
//   Start: listening, health NOT_SERVING, requests answer UNAVAILABLE
//   Serve: a warm-up has answered; SERVING
//   BeginDrain: NOT_SERVING, new requests answer UNAVAILABLE, running ones go on
//   Shutdown: what still runs gets its terminal event and UNAVAILABLE; the port is closed
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/metrics_sink.h"
#include "server/config.h"
#include "server/serving_state.h"

namespace grpc {
class ServerBuilder;
}

namespace comoe::server {

// Thread-safe but for destruction.
class Server {
 public:
  // Binds and listens. `metrics` outlives the server. INVALID_ARGUMENT: a setting. UNAVAILABLE: the port is
  // taken (it is never shared with another process) or the address is not this machine's.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerConfig& config,
                                                       base::MetricsSink& metrics);
  // Shuts down first, if nobody has.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // HOST:PORT with the port that was bound.
  const std::string& address() const { return address_; }
  // Of the admin listener; "" if there is none.
  const std::string& admin_address() const { return admin_address_; }

  // What SchedulerOptions::told is to be: from now on an output thread is waken once a step and not for every
  // token of it. The server outlives the scheduler's use of it.
  std::function<void()> GatherWakes();

  // Runs a short generation through the scheduler and, when it has answered, serves. Blocks meanwhile. The
  // backend's scheduler and tokenizer outlive Shutdown. UNAVAILABLE when a drain began meanwhile; the
  // warm-up's error if it failed, and nothing is served. Once.
  absl::Status Serve(Backend backend);

  // Health is NOT_SERVING for good, so that balancers send nothing more; what comes anyway is served.
  void AnnounceDrain();
  void BeginDrain();
  // Blocks until no generation is open or the time has come; true if none is.
  bool WaitUntilIdle(absl::Time until);
  // Stops the scheduler and gRPC; implies BeginDrain. Idempotent. Returns within about 12 seconds: if gRPC
  // does not come to an end (it waits for ever for an RPC that nobody finishes), the process is ended with
  // exit code 70.
  void Shutdown();

 private:
  struct Parts;  // everything gRPC

  Server(const ServerConfig& config, base::MetricsSink& metrics);
  absl::Status Listen();
  // Binds the data port and starts gRPC behind it; its address.
  absl::StatusOr<std::string> OpenPort(grpc::ServerBuilder& builder);
  absl::Status ListenForAdmin();
  absl::Status WarmUp(const Backend& backend);
  void OnEngineSilence(bool silent);

  const ServerConfig config_;
  base::MetricsSink& metrics_;
  ServingState state_;
  std::string address_;  // constant after Start, as the next
  std::string admin_address_;
  std::atomic<bool> shut_down_{false};
  std::unique_ptr<Parts> parts_;  // constant after construction
};

}  // namespace comoe::server
