#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "grpcpp/ext/channelz_service_plugin.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/server_builder_option.h"
#include "server/admin_service.h"
#include "server/connection_gate.h"
#include "server/engine_thread.h"
#include "server/engine_watch.h"
#include "server/generation.h"
#include "server/health.h"
#include "server/inference_service.h"
#include "server/model_service.h"
#include "server/output_threads.h"
#include "server/worker_pool.h"

namespace comoe::server {
namespace {

constexpr absl::Duration kTerminalEventTimeout = absl::Seconds(2);
constexpr absl::Duration kGrpcShutdownTimeout = absl::Seconds(5);
// With no generation open only short questions can be under way. It is no use to wait longer: a client that
// is idle answers the library's farewell late, and the library waits for it.
constexpr absl::Duration kIdleGrpcShutdownTimeout = absl::Milliseconds(300);
constexpr absl::Duration kWatchdogTimeout = absl::Seconds(5);
constexpr int kWatchdogExitCode = 70;
constexpr int kMsPerSecond = 1000;

// Streams that one connection may have open: all that can run and wait, and room for questions.
int MaxStreams(const batching::SchedulerOptions& scheduler) {
  return static_cast<int>(scheduler.max_sequences + scheduler.max_waiting_requests + 64);
}

int ToMs(absl::Duration duration) {
  return static_cast<int>(std::min<std::int64_t>(absl::ToInt64Milliseconds(duration), INT32_MAX));
}

void Configure(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(config.limits.max_message_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(config.limits.max_answer_bytes));
  // The library decompresses a message whole before it looks at its size: a megabyte can become a gigabyte.
  // Compressed requests get UNIMPLEMENTED.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  // Of messages on their way in and out, over all connections.
  grpc::ResourceQuota quota("comoe-server");
  quota.Resize(static_cast<std::size_t>(config.max_network_bytes));
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(config.limits.max_metadata_bytes));
  // A peer that connects and does not speak HTTP/2 (a port scanner) is closed.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20 * kMsPerSecond);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, ToMs(config.max_connection_idle));
  // Otherwise a second server shares the port silently and gets half of the connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A client may ping every 5 s with no data in flight; the default of 300 s cuts clients off in a long
  // prefill.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5 * kMsPerSecond);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  // And the server finds out about peers that are gone.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30 * kMsPerSecond);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10 * kMsPerSecond);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, MaxStreams(config.scheduler));
}

// Linking reflection or channelz gives it to every server of the process; this decides for one.
class PluginChoice final : public grpc::ServerBuilderOption {
 public:
  PluginChoice(bool reflection, bool channelz) : reflection_(reflection), channelz_(channelz) {}
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string reflection = grpc::reflection::ProtoServerReflectionPlugin().name();
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [&](const auto& plugin) {
                                    return plugin->name() == reflection ||
                                           (!channelz_ && plugin->name() == "channelz_service");
                                  }),
                   plugins->end());
    if (reflection_) {
      plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
    }
  }

 private:
  const bool reflection_;
  const bool channelz_;
};

// Ends the process unless told in time that there is no need.
class Watchdog {
 public:
  explicit Watchdog(absl::Duration timeout) : thread_([this, timeout] { Run(absl::Now() + timeout); }) {}
  ~Watchdog() {
    {
      base::MutexLock lock(&mutex_);
      over_ = true;
    }
    wake_.Signal();
    thread_.join();
  }

 private:
  void Run(absl::Time until) {
    base::MutexLock lock(&mutex_);
    while (!over_) {
      if (absl::Now() >= until) {
        base::Log(base::LogLevel::kError, "server", "gRPC did not come to an end; the process is ended");
        _exit(kWatchdogExitCode);
      }
      wake_.WaitWithTimeout(&mutex_, until - absl::Now());
    }
  }

  base::Mutex mutex_;
  base::CondVar wake_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Waits for the outcome of the warm-up.
class WarmUpObserver final : public batching::RequestObserver {
 public:
  void OnStarted(std::int64_t /*cached_prompt_tokens*/) override {}
  void OnTokens(absl::Span<const batching::GeneratedToken> /*tokens*/) override {}
  void OnFinished(const batching::RequestOutcome& outcome) override {
    base::MutexLock lock(&mutex_);
    outcome_ = outcome;
    finished_ = true;
    wake_.Signal();
  }
  // The scheduler ends the request at its deadline, so this returns.
  batching::RequestOutcome Wait() {
    base::MutexLock lock(&mutex_);
    while (!finished_) {
      wake_.Wait(&mutex_);
    }
    return outcome_;
  }

 private:
  base::Mutex mutex_;
  base::CondVar wake_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  batching::RequestOutcome outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

struct Server::Parts {
  Parts(const ServerConfig& config, ServingState& state, base::MetricsSink& sink)
      : metrics(sink),
        backlog(config.limits, output, metrics),
        workers(config.tokenizer_threads, "comoe-tokenizer",
                {static_cast<std::size_t>(config.max_pending_requests),
                 static_cast<std::size_t>(config.max_pending_bytes)}),
        output(config.output_threads, "comoe-output"),
        inference({state, workers, output, metrics, config.limits, registry, backlog, gathers_wakes}),
        models(state, metrics),
        admin(state, config, workers, metrics) {}

  // In this order: gRPC goes first, then the threads, which may still run what gRPC has left, then what they
  // use.
  RequestMetrics metrics;
  RequestRegistry registry;
  StreamBacklog backlog;
  WorkerPool workers;
  OutputThreads output;
  std::atomic<bool> gathers_wakes{false};
  InferenceService inference;
  ModelService models;
  AdminService admin;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<ConnectionGate> gate;
  std::unique_ptr<grpc::Server> admin_grpc;  // null: AdminService is on `grpc`, or nowhere
  std::unique_ptr<Health> health;
  std::unique_ptr<EngineWatch> watch;
};

Server::Server(const ServerConfig& config, base::MetricsSink& metrics)
    : config_(config), metrics_(metrics), parts_(std::make_unique<Parts>(config_, state_, metrics)) {}

Server::~Server() { Shutdown(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerConfig& config,
                                                      base::MetricsSink& metrics) {
  COMOE_RETURN_IF_ERROR(ValidateServerConfig(config));
  std::unique_ptr<Server> server(new Server(config, metrics));
  COMOE_RETURN_IF_ERROR(server->Listen());
  PublishBuildInfo(metrics);
  return server;
}

absl::Status Server::Listen() {
  grpc::EnableDefaultHealthCheckService(true);
  const bool own_admin = !config_.admin_listen.empty();
  if (own_admin) {
    grpc::channelz::experimental::InitChannelzService();
  }
  grpc::ServerBuilder builder;
  const bool trusted = IsLoopback(config_.listen) && !own_admin;
  builder.SetOption(std::make_unique<PluginChoice>(/*reflection=*/IsLoopback(config_.listen), false));
  Configure(config_, &builder);
  builder.RegisterService(&parts_->inference);
  builder.RegisterService(&parts_->models);
  if (trusted) {
    builder.RegisterService(&parts_->admin);
  }
  COMOE_ASSIGN_OR_RETURN(address_, OpenPort(builder));
  if (own_admin) {
    COMOE_RETURN_IF_ERROR(ListenForAdmin());
  }
  parts_->health = std::make_unique<Health>(std::vector<grpc::HealthCheckServiceInterface*>{
      parts_->grpc->GetHealthCheckService(),
      own_admin ? parts_->admin_grpc->GetHealthCheckService() : nullptr});
  if (parts_->gate != nullptr) {
    parts_->gate->Start([acceptor = parts_->acceptor.get()](int listener_fd, int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listener_fd;
      parameters.fd = fd;
      acceptor->HandleNewConnection(&parameters);
    });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Server::OpenPort(grpc::ServerBuilder& builder) {
  const auto credentials = grpc::InsecureServerCredentials();
  std::string address = config_.listen;
  if (absl::StartsWith(config_.listen, "unix")) {
    builder.AddListeningPort(config_.listen, credentials);
  } else {
    COMOE_ASSIGN_OR_RETURN(parts_->gate,
                           ConnectionGate::Listen(config_.listen, config_.max_connections, metrics_));
    address = WithPort(config_.listen, parts_->gate->port());
    using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    parts_->acceptor = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  }
  parts_->grpc = builder.BuildAndStart();
  if (parts_->grpc == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", config_.listen, "; choose another with --listen"));
  }
  return address;
}

absl::Status Server::ListenForAdmin() {
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<PluginChoice>(/*reflection=*/true, /*channelz=*/true));
  Configure(config_, &builder);
  int port = 0;
  builder.AddListeningPort(config_.admin_listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&parts_->models);
  builder.RegisterService(&parts_->admin);
  parts_->admin_grpc = builder.BuildAndStart();
  if (parts_->admin_grpc == nullptr || (port == 0 && !absl::StartsWith(config_.admin_listen, "unix"))) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", config_.admin_listen,
                                               ": another process has the port, or the address is not one of "
                                               "this machine's; choose another with --admin-listen"));
  }
  admin_address_ = WithPort(config_.admin_listen, port);
  return absl::OkStatus();
}

std::function<void()> Server::GatherWakes() {
  parts_->gathers_wakes.store(true, std::memory_order_release);
  return [output = &parts_->output] {
    EngineThread::Mark();
    output->Flush();
  };
}

absl::Status Server::WarmUp(const Backend& backend) {
  batching::Request request;
  request.id = "warm-up";
  request.prompt = {backend.model.bos_token_id >= 0 ? backend.model.bos_token_id : 0};
  if (backend.tokenizer != nullptr) {
    COMOE_ASSIGN_OR_RETURN(std::vector<base::TokenId> tokens, backend.tokenizer->Encode("Hello", true));
    if (!tokens.empty()) {
      request.prompt = std::move(tokens);
    }
  }
  request.sampling.temperature = 0.0F;
  request.stop.max_tokens = 2;  // one from a prefill, one from a decode
  request.stop.ignore_eos = true;
  request.counted = false;
  request.received = absl::Now();
  request.deadline = absl::Now() + config_.warmup_timeout;
  const auto observer = std::make_shared<WarmUpObserver>();
  COMOE_RETURN_IF_ERROR(backend.scheduler->Submit(std::move(request), observer));
  const batching::RequestOutcome outcome = observer->Wait();
  if (!outcome.status.ok()) {
    return outcome.status;
  }
  if (outcome.usage.completion_tokens < 1) {
    return absl::InternalError(
        absl::StrCat("it gave no token and ended with ", batching::FinishReasonName(outcome.reason)));
  }
  return absl::OkStatus();
}

absl::Status Server::Serve(Backend backend) {
  state_.SetBackend(std::move(backend));
  const Backend& loaded = *state_.backend();
  PublishModelInfo(loaded, metrics_);
  if (const absl::Status status = WarmUp(loaded); !status.ok()) {
    return base::Annotate(status, "the warm-up generation failed");
  }
  state_.SetPhase(Phase::kServing);
  if (state_.phase() != Phase::kServing) {
    return absl::UnavailableError("the server was told to stop while it started");
  }
  parts_->health->SetServing(true);
  parts_->watch = std::make_unique<EngineWatch>(*loaded.scheduler, config_.engine_stall_timeout,
                                                [this](bool silent) { OnEngineSilence(silent); });
  return absl::OkStatus();
}

void Server::OnEngineSilence(bool silent) {
  state_.SetStalled(silent);
  parts_->health->SetServing(!silent);
  if (silent) {
    const absl::Status status = absl::UnavailableError(absl::StrCat(
        "the engine has made no progress for ", absl::FormatDuration(config_.engine_stall_timeout)));
    for (const std::shared_ptr<Generation>& generation : parts_->registry.All()) {
      generation->FailByEngine(status);
    }
  }
}

void Server::AnnounceDrain() {
  if (parts_->health != nullptr) {
    parts_->health->Shutdown();  // for good: a Serve that is about to say SERVING is too late
  }
}

void Server::BeginDrain() {
  state_.SetPhase(Phase::kDraining);
  AnnounceDrain();
  if (const Backend* backend = state_.backend(); backend != nullptr) {
    backend->scheduler->BeginDrain();
  }
}

bool Server::WaitUntilIdle(absl::Time until) { return state_.WaitUntilIdle(until); }

void Server::Shutdown() {
  if (shut_down_.exchange(true) || parts_->grpc == nullptr) {
    return;
  }
  BeginDrain();
  if (const Backend* backend = state_.backend(); backend != nullptr) {
    backend->scheduler->Stop(absl::Now());
  }
  // Every generation has its outcome now; its terminal event goes out before gRPC cancels what is open.
  const bool idle = state_.WaitUntilIdle(absl::Now() + kTerminalEventTimeout);
  const absl::Duration timeout = idle ? kIdleGrpcShutdownTimeout : kGrpcShutdownTimeout;
  const Watchdog watchdog(timeout + kWatchdogTimeout);
  parts_->watch.reset();
  if (parts_->gate != nullptr) {
    parts_->gate->Stop();
  }
  for (grpc::Server* server : {parts_->grpc.get(), parts_->admin_grpc.get()}) {
    if (server != nullptr) {
      server->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
      server->Wait();
    }
  }
}

}  // namespace comoe::server
