// `comoe serve`: wires engine, scheduler and server together, and ends them in order on SIGTERM or SIGINT.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/engine_bundle.h"
#include "cli/engine_options.h"
#include "cli/grpc_log.h"
#include "cli/hardware_lines.h"
#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/sync.h"
#include "scheduler/batching/scheduler.h"
#include "server/config.h"
#include "server/metrics_exporter.h"
#include "server/server.h"

namespace comoe::cli {
namespace {

struct ServeOptions {
  EngineOptions engine;
  server::ServerConfig server;
  double drain_timeout_s = 10;
  double drain_delay_s = 0;
  double engine_stall_timeout_s = 120;
  double stream_stall_timeout_s = 30;
  std::string log_level = "info";
};

// SIGTERM and SIGINT as something to poll. The signals are blocked from here on, in every thread started
// later.
class StopSignals {
 public:
  static absl::StatusOr<std::unique_ptr<StopSignals>> Take() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    const int fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) {
      return absl::ErrnoToStatus(errno, "signalfd");
    }
    return std::unique_ptr<StopSignals>(new StopSignals(fd));
  }
  ~StopSignals() { close(fd_); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return fd_; }
  // True if one came since the last call.
  bool Came() {
    signalfd_siginfo info = {};
    return read(fd_, &info, sizeof(info)) == sizeof(info);
  }

 private:
  explicit StopSignals(int fd) : fd_(fd) {}
  const int fd_;
};

// Waits until one of both can be read; `other` may be -1.
void Poll(int signals, int other, absl::Duration timeout) {
  pollfd fds[2] = {{signals, POLLIN, 0}, {other, POLLIN, 0}};
  const int ms =
      timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout));
  poll(fds, other < 0 ? 1 : 2, ms);
}

// A drain asked for by RPC, as something to poll.
class DrainRequest {
 public:
  explicit DrainRequest(absl::Duration timeout) : timeout_(timeout), event_(eventfd(0, EFD_CLOEXEC)) {}
  ~DrainRequest() { close(event_); }
  DrainRequest(const DrainRequest&) = delete;
  DrainRequest& operator=(const DrainRequest&) = delete;

  int fd() const { return event_; }
  // Any thread.
  void Ask(absl::Duration timeout) {
    base::MutexLock lock(&mutex_);
    timeout_ = timeout;
    asked_ = true;
    const std::uint64_t one = 1;
    while (write(event_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  bool asked() const {
    base::MutexLock lock(&mutex_);
    return asked_;
  }
  // What the last one asked for, or the setting.
  absl::Duration timeout() const {
    base::MutexLock lock(&mutex_);
    return timeout_;
  }

 private:
  mutable base::Mutex mutex_;
  absl::Duration timeout_ ABSL_GUARDED_BY(mutex_);
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  const int event_;
};

// Why the engine cannot go on; OK while it can. Thread-safe.
class EngineFailure {
 public:
  void Set(const absl::Status& status) {
    base::MutexLock lock(&mutex_);
    status_ = status;
  }
  absl::Status status() const {
    base::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable base::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// What lives between start and stop, torn down from the bottom up: the server first, whose RPCs use the rest.
struct Service {
  server::MetricsExporter metrics;
  std::string model;  // its name, once loaded
  std::unique_ptr<EngineBundle> engine;
  std::unique_ptr<batching::Scheduler> scheduler;
  std::unique_ptr<server::Server> server;
};

// How the memory is split, and what that is enough for.
void LogMemory(const api::Engine& engine, const std::string& tiers, const server::Backend& backend) {
  const api::EngineCapacity& capacity = engine.capacity();
  base::Logf(base::LogLevel::kInfo, "serve", "%s", backend.device);
  base::Logf(base::LogLevel::kInfo, "serve", "memory: experts %s, other weights %s, KV %s, workspace %s",
             base::FormatBytes(backend.model.all_expert_bytes),
             base::FormatBytes(backend.model.resident_bytes), base::FormatBytes(capacity.kv_bytes),
             base::FormatBytes(capacity.workspace_bytes));
  for (const absl::string_view line : absl::StrSplit(tiers, '\n', absl::SkipEmpty())) {
    base::Logf(base::LogLevel::kInfo, "serve", "%s", line);
  }
  base::Logf(base::LogLevel::kInfo, "serve", "at most %d requests at once, of at most %d tokens each%s",
             capacity.max_sequences, backend.max_positions,
             backend.max_positions < backend.model.context_length
                 ? absl::StrCat(" (the model's context is ", backend.model.context_length,
                                ", but KV memory holds no more: --kv-bytes)")
                 : "");
}

absl::Status LoadAndServe(const ServeOptions& options, Service* service) {
  EngineOptions engine_options = options.engine;
  engine_options.metrics = &service->metrics;
  COMOE_ASSIGN_OR_RETURN(service->engine, LoadEngine(engine_options));
  api::Engine& engine = service->engine->engine();
  server::Backend backend;
  backend.model = engine.model_info();
  backend.max_positions = engine.capacity().max_positions;
  backend.tokenizer = service->engine->tokenizer();
  backend.device = std::string(service->engine->device_description());
  backend.load_seconds = service->engine->load_seconds();
  // From here on the engine belongs to the scheduler's thread.
  batching::SchedulerOptions scheduler = options.server.scheduler;
  scheduler.told = service->server->GatherWakes();
  scheduler.costs = service->engine->step_costs();
  service->scheduler = batching::MakeScheduler(engine, scheduler, service->metrics);
  backend.scheduler = service->scheduler.get();
  service->model = backend.model.name;
  LogMemory(engine, service->engine->tiers_description(), backend);
  return service->server->Serve(std::move(backend));
}

// Lets running requests finish until the timeout, or until a second signal is impatient.
void Drain(absl::Duration delay, absl::Duration timeout, StopSignals& signals, server::Server& server) {
  constexpr absl::Duration kLook = absl::Milliseconds(100);
  if (delay > absl::ZeroDuration()) {
    base::Logf(base::LogLevel::kInfo, "serve",
               "not serving from now on; requests that come within %s are served",
               absl::FormatDuration(delay));
    server.AnnounceDrain();
    // A second signal ends the delay, too.
    Poll(signals.fd(), -1, delay);
    signals.Came();
  }
  base::Logf(base::LogLevel::kInfo, "serve", "stopping: running requests have %s to finish",
             absl::FormatDuration(timeout));
  server.BeginDrain();
  const absl::Time until = absl::Now() + timeout;
  while (absl::Now() < until && !server.WaitUntilIdle(std::min(until, absl::Now() + kLook))) {
    if (signals.Came()) {
      base::Log(base::LogLevel::kInfo, "serve", "second signal: running requests are ended now");
      break;
    }
  }
  server.Shutdown();
}

absl::Status Serve(ServeOptions options) {
  options.server.scheduler.max_batch_tokens = options.engine.max_batch_tokens;
  options.server.scheduler.max_sequences = options.engine.max_sequences;
  options.server.drain_timeout = absl::Seconds(options.drain_timeout_s);
  options.server.limits.stream_stall_timeout = absl::Seconds(options.stream_stall_timeout_s);
  options.server.engine_stall_timeout = absl::Seconds(options.engine_stall_timeout_s);
  DrainRequest drain(options.server.drain_timeout);
  options.server.on_drain = [&drain](absl::Duration timeout) { drain.Ask(timeout); };
  // A lost device helps nobody: end, and let whoever watches start another process.
  EngineFailure failure;
  options.server.scheduler.engine_failed = [&drain, &failure](const absl::Status& status) {
    base::Logf(base::LogLevel::kError, "serve", "the engine cannot go on: %s", status.message());
    failure.Set(status);
    drain.Ask(absl::ZeroDuration());
  };
  COMOE_RETURN_IF_ERROR(SetLogLevelByName(options.log_level));
  if (!(options.drain_timeout_s >= 0.0) || !(options.drain_delay_s >= 0.0) ||
      !(options.stream_stall_timeout_s > 0.0)) {
    return absl::InvalidArgumentError(
        "--drain-timeout and --drain-delay are at least 0 seconds, --stream-stall-timeout above 0");
  }
  // All choices of a request have to fit into the queue at once.
  options.server.limits.max_choices =
      std::min(options.server.limits.max_choices,
               std::max<std::int64_t>(1, options.server.scheduler.max_waiting_requests));
  COMOE_RETURN_IF_ERROR(server::ValidateServerConfig(options.server));
  COMOE_RETURN_IF_ERROR(CheckEngineOptions(options.engine));
  if (options.engine.model.empty()) {
    return absl::InvalidArgumentError("which model? Give --model DIR, a checkpoint folder");
  }
  RouteGrpcLog();
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<StopSignals> signals, StopSignals::Take());

  LogHardware("serve");
  Service service;
  if (!options.server.metrics_listen.empty()) {
    COMOE_RETURN_IF_ERROR(service.metrics.Listen(options.server.metrics_listen));
    base::Logf(base::LogLevel::kInfo, "serve", "metrics on http://%s/metrics", service.metrics.address());
  }
  COMOE_ASSIGN_OR_RETURN(service.server, server::Server::Start(options.server, service.metrics));
  if (!service.server->admin_address().empty()) {
    base::Logf(base::LogLevel::kInfo, "serve", "admin service on %s", service.server->admin_address());
  } else if (!server::IsLoopback(options.server.listen)) {
    base::Log(base::LogLevel::kInfo, "serve",
              "no admin service: others can reach the data port; --admin-listen gives it one of its own");
  }
  base::Logf(base::LogLevel::kInfo, "serve", "listening on %s; loading %s", service.server->address(),
             options.engine.model);

  // Loading has its own thread, so that a signal is heard meanwhile.
  const int loaded = eventfd(0, EFD_CLOEXEC);
  absl::Status load_status;
  std::atomic<bool> load_done{false};
  std::thread loader([&] {
    load_status = LoadAndServe(options, &service);
    load_done.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    while (write(loaded, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  });
  bool stop = false;
  while (!stop && !load_done.load(std::memory_order_acquire)) {
    Poll(signals->fd(), loaded, absl::InfiniteDuration());
    stop = signals->Came();
  }
  if (stop && !load_done.load(std::memory_order_acquire)) {
    // A load cannot be called off half-way; nothing of it needs an orderly end.
    base::Log(base::LogLevel::kInfo, "serve", "stopped while the model was loading");
    std::fflush(nullptr);
    _exit(0);
  }
  loader.join();
  close(loaded);
  COMOE_RETURN_IF_ERROR(load_status);
  absl::PrintF("serving %s on %s\n", service.model, service.server->address());
  std::fflush(stdout);
  while (!stop) {
    Poll(signals->fd(), drain.fd(), absl::InfiniteDuration());
    stop = signals->Came() || drain.asked();
  }
  const bool failed = !failure.status().ok();
  Drain(failed ? absl::ZeroDuration() : absl::Seconds(options.drain_delay_s), drain.timeout(), *signals,
        *service.server);
  service.server.reset();
  service.scheduler.reset();  // no step runs from here on
  if (const absl::Status saved = service.engine->SaveHubState(); !saved.ok()) {
    base::Logf(base::LogLevel::kError, "serve", "what the hub has learnt is lost: %s", saved.message());
  }
  base::Log(base::LogLevel::kInfo, "serve", "stopped");
  return failure.status();
}

}  // namespace

void AddServeCommand(CLI::App& app, absl::Status& result) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over gRPC");
  const auto options = std::make_shared<ServeOptions>();
  options->engine.max_sequences = 16;
  AddEngineFlags(*command, options->engine);
  server::ServerConfig& config = options->server;
  command->add_option("--listen", config.listen, "gRPC address, HOST:PORT; port 0 is any free one")
      ->capture_default_str();
  command
      ->add_option("--metrics-listen", config.metrics_listen, "Prometheus address, HOST:PORT; \"\" for none")
      ->capture_default_str();
  command
      ->add_option(
          "--admin-listen", config.admin_listen,
          "Address of AdminService, reflection and channelz, HOST:PORT; \"\": the first two are on --listen "
          "while that is loopback")
      ->capture_default_str();
  command
      ->add_option("--max-connections", config.max_connections,
                   "Clients connected at once; one more is refused")
      ->capture_default_str();
  command
      ->add_option("--engine-stall-timeout", options->engine_stall_timeout_s,
                   "Seconds without a finished step, while requests run, after which health is NOT_SERVING")
      ->capture_default_str();
  command
      ->add_option("--max-waiting", config.scheduler.max_waiting_requests,
                   "Requests that may wait; one more is refused")
      ->capture_default_str();
  command
      ->add_option("--max-waiting-tokens", config.scheduler.max_waiting_tokens,
                   "Prompt tokens of all waiting requests; a request above is refused, unless it waits alone")
      ->capture_default_str();
  command
      ->add_option("--max-chunk-tokens", config.scheduler.max_chunk_tokens,
                   "Rows of one prompt in a step, 0 for --max-batch-tokens")
      ->capture_default_str();
  command->add_flag("!--no-prefix-cache", config.scheduler.reuse_prefixes,
                    "Compute every prompt from its first token, even if it begins like an earlier one");
  command
      ->add_option("--max-choices", config.limits.max_choices,
                   "Completions that one request may ask for, at most --max-waiting")
      ->capture_default_str();
  command
      ->add_option(
          "--max-total-backlog-tokens", config.limits.max_total_backlog_tokens,
          "Tokens that may wait for the readers of all streams; above, the one furthest behind is ended")
      ->capture_default_str();
  command
      ->add_option(
          "--drain-delay", options->drain_delay_s,
          "Seconds after SIGTERM in which new requests are still served, though health is NOT_SERVING")
      ->capture_default_str();
  command
      ->add_option("--default-max-tokens", config.limits.default_max_tokens,
                   "Longest completion of a request that names no limit, in tokens")
      ->capture_default_str();
  command->add_option("--drain-timeout", options->drain_timeout_s, "Seconds running requests get on SIGTERM")
      ->capture_default_str();
  command
      ->add_option("--stream-stall-timeout", options->stream_stall_timeout_s,
                   "Seconds after which a stream that nobody reads is ended")
      ->capture_default_str();
  command->add_option("--tokenizer-threads", config.tokenizer_threads, "Threads that tokenise prompts")
      ->capture_default_str();
  command->add_option("--log-level", options->log_level, "debug, info, warning or error")
      ->capture_default_str();
  command->callback([options, &result] { result = Serve(*options); });
}

}  // namespace comoe::cli
