#include "server/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace comoe::server {
namespace {

constexpr int kBacklog = 128;
constexpr int kCountIntervalMs = 1000;  // how old the gauge of open connections gets

struct AddressDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

absl::Status NoAddress(absl::string_view address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// A bound and listening socket, or -1 with errno.
int ListenOn(const addrinfo& info, int port) {
  sockaddr_storage address = {};
  std::memcpy(&address, info.ai_addr, info.ai_addrlen);
  auto& port_field = info.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                : reinterpret_cast<sockaddr_in&>(address).sin_port;
  port_field = htons(static_cast<std::uint16_t>(port));
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -1;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on,
             sizeof(on));  // a port in TIME_WAIT is free; a busy one stays busy
  if (info.ai_family == AF_INET6) {
    const int only_v6 = 0;  // [::] is every address, as the library has it
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
  }
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), info.ai_addrlen) != 0 ||
      listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

}  // namespace

ConnectionGate::ConnectionGate(std::int64_t max_connections, base::MetricsSink& metrics)
    : max_connections_(max_connections),
      open_gauge_(metrics.AddGauge("connections", "Client connections that are open.", {})),
      refused_(metrics.AddCounter("connections_refused_total",
                                  "Connections that were closed at once because too many are open.", {})),
      stop_event_(eventfd(0, EFD_CLOEXEC)) {}

ConnectionGate::~ConnectionGate() {
  Stop();
  close(stop_event_);
}

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(absl::string_view address,
                                                                       std::int64_t max_connections,
                                                                       base::MetricsSink& metrics) {
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(max_connections, metrics));
  COMOE_RETURN_IF_ERROR(gate->Bind(address));
  return gate;
}

absl::Status ConnectionGate::Bind(absl::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::string host(address.substr(0, colon));
  const std::string service(address.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &list); error != 0) {
    return NoAddress(address, absl::StrCat(gai_strerror(error), "; choose another with --listen"));
  }
  const std::unique_ptr<addrinfo, AddressDeleter> owned(list);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) {
      continue;
    }
    sockaddr_storage wanted = {};
    std::memcpy(&wanted, info->ai_addr, info->ai_addrlen);
    const int fd = ListenOn(*info, port_ != 0 ? port_ : PortOf(wanted));
    if (fd < 0) {
      error = errno;
      if (error == EADDRINUSE) {
        break;  // half of a name's addresses would be somebody else's
      }
      continue;  // an address family that this machine does not have
    }
    listeners_.push_back(fd);
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = PortOf(bound);
    error = 0;
  }
  if (error != 0 && (listeners_.empty() || error == EADDRINUSE)) {
    return NoAddress(address, error == EADDRINUSE
                                  ? "another process has the port; choose another with --listen"
                                  : absl::StrCat(std::strerror(error), "; choose another with --listen"));
  }
  return absl::OkStatus();
}

void ConnectionGate::Start(HandOver hand_over) {
  thread_ = std::thread([this, hand_over = std::move(hand_over)] { Run(hand_over); });
  pthread_setname_np(thread_.native_handle(), "comoe-accept");
}

void ConnectionGate::Stop() {
  if (stopped_.exchange(true)) {
    return;
  }
  const std::uint64_t one = 1;
  while (write(stop_event_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  for (const int listener : listeners_) {
    close(listener);
  }
}

void ConnectionGate::Run(const HandOver& hand_over) {
  std::vector<pollfd> fds = {{stop_event_, POLLIN, 0}};
  for (const int listener : listeners_) {
    fds.push_back({listener, POLLIN, 0});
  }
  while (!stopped_.load(std::memory_order_acquire)) {
    const int ready = poll(fds.data(), fds.size(), handed_over_.empty() ? -1 : kCountIntervalMs);
    for (std::size_t i = 1; ready > 0 && i < fds.size(); ++i) {
      if ((fds[i].revents & POLLIN) != 0) {
        Accept(fds[i].fd, hand_over);
      }
    }
    open_gauge_.Set(static_cast<double>(CountOpen()));
  }
}

void ConnectionGate::Accept(int listener, const HandOver& hand_over) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      base::Logf(base::LogLevel::kError, "server", "a connection was not accepted: %s", std::strerror(errno));
      usleep(10'000);  // the connection stays ready: do not spin
    }
    return;
  }
  if (CountOpen() >= max_connections_) {
    refused_.Increment();
    base::Logf(base::LogLevel::kWarning, "server",
               "a connection was refused: %d are open (--max-connections)", max_connections_);
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // a token's message does not wait for more
  struct stat status = {};
  if (fstat(fd, &status) == 0) {
    handed_over_[fd] = status.st_ino;
  }
  hand_over(listener, fd);
}

std::int64_t ConnectionGate::CountOpen() {
  for (auto it = handed_over_.begin(); it != handed_over_.end();) {
    struct stat status = {};
    const bool open =
        fstat(it->first, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == it->second;
    const auto entry = it++;
    if (!open) {
      handed_over_.erase(entry);
    }
  }
  return static_cast<std::int64_t>(handed_over_.size());
}

}  // namespace comoe::server
