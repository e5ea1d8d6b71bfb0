#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <system_error>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/variables.h"
#include "cluster/listening_socket.h"
#include "comm/stores.h"
#include "comm/wait_policy.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

#if __has_include(<torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>)  // LibTorch 2.14
#include <torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>
#else
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#endif

namespace muster::comm {

/// Thrown by call_in_time() if the call has not returned in time.
struct LateCall : std::runtime_error {
  LateCall() : std::runtime_error("it has not answered in time") {}
};

namespace {

/// Returns or throws what `call` does. `call` runs on a new thread, which is left running if it takes longer than
/// `limit`, so it must own everything that it uses. Throws: LateCall in that case.
template <class F>
std::invoke_result_t<F> call_in_time(std::chrono::milliseconds limit, F call) {
  std::packaged_task<std::invoke_result_t<F>()> task(std::move(call));
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_for(limit) == std::future_status::ready) {
    thread.join();
    return result.get();
  }
  thread.detach();
  throw LateCall();
}

/// Milliseconds by which an answer may come later than the store's timeout.
constexpr std::chrono::milliseconds kLateAnswer{2000};

}  // namespace

/// A store whose calls take at most its timeout (or a longer one given to wait()) plus kLateAnswer. c10d's client has
/// no such bound: it waits forever for a server whose process is stopped.
/// Throws, from all functions: std::runtime_error if the server has not answered by then, and in every later call.
/// Thread-safe; calls are made one after the other.
/// Why: docs/decisions/0165-one-deadline-for-the-rendezvous.md.
class BoundedStore final : public ForwardingStore {
 public:
  /// `place` tells where the store is; used in messages.
  BoundedStore(c10::intrusive_ptr<c10d::Store> store, std::string place)
      : ForwardingStore(std::move(store)), place_(std::move(place)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<BoundedStore>(call([](auto& store) { return store.clone(); }), place_);
  }

  // The timeout is this store's own, since several may share a server's store.
  const std::chrono::milliseconds& getTimeout() const noexcept override { return timeout_; }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    const base::Lock lock(mutex_);
    timeout_ = timeout;
    if (!is_silent_) store_->setTimeout(timeout);
  }

 private:
  void run(std::function<void(c10d::Store&)> function, std::chrono::milliseconds waits) override {
    const base::Lock lock(mutex_);
    const auto limit = std::max(waits, timeout_) + kLateAnswer;
    if (!is_silent_) try {
        return call_in_time(limit, [store = store_, function = std::move(function)] { function(*store); });
      } catch (const LateCall&) {
        is_silent_ = true;
      }
    throw std::runtime_error(formatted(
        "the store at {} has stopped answering: the process that holds it is stopped, or its host is gone", place_));
  }

  const std::string place_;
  base::Mutex mutex_;
  bool is_silent_ MUSTER_GUARDED_BY(mutex_) = false;  // the mutex guards the calls, too
};

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstPause(20), kLongestPause(1000);
constexpr milliseconds kPatience(10'000);  ///< time for one address if there are several
constexpr milliseconds kLastWords(500);    ///< time that a silent server has to answer a line of text
constexpr std::size_t kQuoted = 60;

/// What was found at one address.
struct Finding {
  bool is_store = false, has_connected = false;
  std::string words = {};
};

std::vector<cluster::SocketAddress> resolve(const std::string& address, int port) {
  std::string problem;
  auto places = cluster::resolve(address, port, 0, &problem);
  if (places.empty()) throw std::runtime_error(problem);
  return places;
}

/// Returns 0, or an errno value.
int connect_to(int descriptor, const cluster::SocketAddress& place, TimePoint end) {
  if (::connect(descriptor, place.get(), place.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!is_ready(descriptor, POLLOUT, end)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Finding without_connection(int error) {
  if (error == ECONNREFUSED) return {.words = "nothing listens there"};
  if (error == ETIMEDOUT)
    return {.words =
                "nothing answers there: a firewall drops the packets, or a process that is stopped or busy "
                "accepts no connection"};
  return {.words = "no connection: " + std::generic_category().message(error)};
}

/// What c10d's client sends first, and what a store replies.
struct Ping {
  std::string sent, answer;
};

Ping make_ping() {
  using c10d::detail::QueryType;
  const auto bytes = [](std::uint32_t number) {
    return std::string(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto nonce = bytes(static_cast<std::uint32_t>(::getpid()));
  const auto query = [](QueryType type) { return std::string(1, static_cast<char>(type)); };
  return {query(QueryType::VALIDATE) + bytes(c10d::detail::validationMagicNumber) + query(QueryType::PING) + nonce,
          nonce};
}

std::string first_line(std::string_view sent) {
  std::string line;
  for (const char letter : sent.substr(0, kQuoted)) {
    if (letter == '\r' || letter == '\n') break;
    line += letter >= ' ' && letter <= '~' ? letter : '?';
  }
  return line;
}

Finding stranger(std::string_view sent) {
  return {.has_connected = true, .words = formatted("another program listens there: it sent \"{}\"", first_line(sent))};
}

/// The finding for a server that has not answered. Many servers wait for a line of text and then identify themselves.
Finding silent(int descriptor) {
  char sent[kQuoted];
  ::send(descriptor, "\r\n\r\n", 4, MSG_NOSIGNAL);
  const auto size =
      is_ready(descriptor, POLLIN, Clock::now() + kLastWords) ? ::recv(descriptor, sent, sizeof sent, 0) : 0;
  if (size > 0) return stranger({sent, static_cast<std::size_t>(size)});
  return {.has_connected = true,
          .words =
              "what listens there accepts connections, but does not answer as a store: it is stopped, or "
              "another program"};
}

/// Sends the ping and reads the reply.
Finding ask(int descriptor, TimePoint end) {
  const auto ping = make_ping();
  ::send(descriptor, ping.sent.data(), ping.sent.size(), MSG_NOSIGNAL);
  std::string sent;
  while (sent.size() < ping.answer.size() || !sent.starts_with(ping.answer)) {
    if (!is_ready(descriptor, POLLIN, end)) return sent.empty() ? silent(descriptor) : stranger(sent);
    char part[kQuoted];
    const auto size = ::recv(descriptor, part, sizeof part, 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0 && sent.empty())
      return {.has_connected = true,
              .words = "what listens there closed the connection without an answer: it is another program, or ends"};
    if (size <= 0) return stranger(sent);
    sent.append(part, static_cast<std::size_t>(size));
    if (!ping.answer.starts_with(sent) && !sent.starts_with(ping.answer)) return stranger(sent);
  }
  return {.is_store = true};
}

Finding visit(const cluster::SocketAddress& place, TimePoint end) {
  const Descriptor socket(::socket(place.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return without_connection(errno);
  if (const int error = connect_to(socket.get(), place, end)) return without_connection(error);
  return ask(socket.get(), end);
}

/// Looks for c10d's store at an address before c10d's client is made, because the client starts its timeout again with
/// every attempt and waits forever for a server that is silent. The probe sends what that client sends first (a ping),
/// so another kind of server is not mistaken for a store.
/// Why: docs/decisions/0165-one-deadline-for-the-rendezvous.md.
class StoreProbe {
 public:
  StoreProbe(std::string address, int port, milliseconds timeout)
      : address_(std::move(address)), port_(port), end_(Clock::now() + timeout) {}

  /// Tries until a store answers, and returns the numeric address at which it does.
  /// Throws: std::runtime_error at the timeout; it says what was found instead.
  std::string wait() {
    for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      std::vector<cluster::SocketAddress> places;
      Finding best;
      try {
        places = call_in_time(left_until(end_), [address = address_, port = port_] { return resolve(address, port); });
      } catch (const std::exception& failure) {
        best.words = formatted("the name '{}' does not resolve: {}", address_, failure.what());
      }
      for (std::size_t i = 0; i < places.size(); ++i) {
        const bool is_last = i + 1 == places.size();
        auto finding = visit(places[i], is_last ? end_ : std::min(end_, Clock::now() + kPatience));
        if (finding.is_store) return cluster::number_of(places[i]);
        if (finding.has_connected || !best.has_connected) best = std::move(finding);
      }
      note(std::move(best.words));
      if (left_until(end_) < kFirstPause) throw std::runtime_error(found());
      std::this_thread::sleep_for(std::min(pause, left_until(end_) / 2));
    }
  }
  /// What the last attempt found; empty before the first one has ended. Any thread may call it.
  std::string found() const {
    const base::Lock lock(mutex_);
    return found_;
  }

 private:
  void note(std::string found) {
    const base::Lock lock(mutex_);
    found_ = std::move(found);
  }

  const std::string address_;
  const int port_;
  const Clock::time_point end_;
  mutable base::Mutex mutex_;
  std::string found_ MUSTER_GUARDED_BY(mutex_);
};

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The servers that this process runs, by port. They are process-wide, like ports, and live as long as the process: the
/// launcher hands its socket over once, and a rank may start another rendezvous before all ranks have left the last
/// one.
struct Servers {
  struct Running {
    StorePtr store;
    std::string address;  ///< address on which the server listens; empty: all addresses
    /// The address at which this process finds the server, whatever the job's address means here.
    std::string for_clients() const { return address.empty() ? "localhost" : address; }
  };
  base::Mutex mutex;
  std::map<int, Running> running MUSTER_GUARDED_BY(mutex);
};

Servers& servers() {
  static auto& all = *new Servers;
  return all;
}

int listen_at(const ClusterEnvironment& cluster) {
  try {
    return cluster::ListeningSocket(cluster.main_port, cluster::where_to_listen(cluster.main_address)).release();
  } catch (const LaunchError& failure) {
    throw std::runtime_error(failure.what());
  }
}

StorePtr run_server(const ClusterEnvironment& cluster, c10d::TCPStoreOptions options) {
  auto& all = servers();
  base::Lock lock(all.mutex);
  if (auto found = all.running.find(cluster.main_port); found != all.running.end())
    return c10::make_intrusive<c10d::TCPStore>(found->second.for_clients(), options);
  const bool is_launchers = cluster.store_listen_fd >= 0;
  if (is_launchers) ::unsetenv(cluster::kStoreFd);  // NOLINT(concurrency-mt-unsafe)
  options.masterListenFd = is_launchers ? cluster.store_listen_fd : listen_at(cluster);
  Servers::Running running{nullptr, cluster::bound_address(*options.masterListenFd)};
  running.store = c10::make_intrusive<c10d::TCPStore>(running.for_clients(), options);
  return all.running.insert_or_assign(cluster.main_port, std::move(running)).first->second.store;
}

/// The address on which the store of this job listens. c10d's own servers listen on all addresses.
std::string address_of_store(const ClusterEnvironment& cluster) {
  auto& all = servers();
  base::Lock lock(all.mutex);
  auto found = all.running.find(cluster.main_port);
  return cluster.store_is_external || found == all.running.end() ? "" : found->second.address;
}

/// Whether this rank logs for all ranks of its node that wait for the server.
bool speaks_for_node(const ClusterEnvironment& cluster) {
  const bool serves_here = cluster.node_rank == 0 && !cluster.store_is_external;
  return cluster.local_rank == (serves_here ? 1 : 0);
}

StorePtr join_server(const ClusterEnvironment& cluster, const c10d::TCPStoreOptions& options,
                     const WarningTimeout& whole) {
  StoreProbe probe(cluster.main_address, cluster.main_port, options.timeout);
  std::optional<Reminder> reminder;
  if (speaks_for_node(cluster))
    reminder.emplace([&](double seconds) {
      const auto found = probe.found();
      return formatted("has waited {:.0f} s for the store at {}:{}, which {} opens{}", seconds, cluster.main_address,
                       cluster.main_port, cluster.store_is_external ? "the launcher" : "rank 0",
                       found.empty() ? "" : "; " + found);
    });
  const auto address = probe.wait();
  return call_in_time(whole.left() + kLateAnswer,
                      [=] { return StorePtr(c10::make_intrusive<c10d::TCPStore>(address, options)); });
}

}  // namespace

StorePtr open_tcp_store(const ClusterEnvironment& cluster, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(cluster.main_port);
  options.isServer = cluster.rank == 0 && !cluster.store_is_external;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // a second group of this process shares the server
  const auto place = log::str(cluster.main_address, ":", cluster.main_port);
  const WarningTimeout whole(timeout);
  auto store = c10::make_intrusive<BoundedStore>(
      options.isServer ? run_server(cluster, options) : join_server(cluster, options, whole), place);
  store->setTimeout(whole.left());
  return store;
}

void say_who_may_join(const ClusterEnvironment& cluster, bool has_secret) {
  if (!cluster.is_main()) return;
  if (cluster.store_is_external && (has_secret || cluster::listens_on_loopback_alone(cluster.main_port))) return;
  const auto address = address_of_store(cluster);
  if (cluster::is_loopback(address) || (has_secret && !address.empty())) return;
  const auto where = log::str("the store of this job listens on port ", cluster.main_port, " of ",
                              address.empty() ? "all addresses of its host" : address);
  if (has_secret)
    return log::warning(where, ", since '", cluster.main_address,
                        "' is not an address of this host that others reach; only ranks with the "
                        "job's secret are let in");
  log::warning(where,
               ", and the job has no secret: whoever reaches it can change what the ranks tell each other there, or "
               "join as a rank. Give every rank "
               "the same MUSTER_SECRET, or MUSTER_SECRET_FILE (see docs/concepts/security.md)");
}

}  // namespace muster::comm
