#include "comm/shared_memory/handover.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "comm/error_text.h"
#include "comm/hierarchical/hosts.h"
#include "comm/rank_index.h"
#include "comm/shared_memory/link.h"
#include "comm/shared_memory/process_areas.h"
#include "muster/base/detail/environment.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using Clock = TimePoint::clock;

/// A text that ranks of one host have in common.
std::string host_of(const ClusterEnvironment& cluster) {
  if (const auto named = Environment::of_process().find("MUSTER_HOST")) return "name " + *named;
  if (cluster.launcher != LauncherKind::none && cluster.launcher != LauncherKind::environment)
    return formatted("node {}", cluster.node_rank);
  const std::string boot = boot_id();
  return boot.empty() ? formatted("rank {}", cluster.rank) : "boot " + boot;
}

/// Equal numbers for equal host names.
std::vector<int> numbered(const std::vector<std::string>& hosts) {
  std::vector<int> numbers;
  for (const auto& host : hosts)
    numbers.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin()));
  return numbers;
}

/// Why ranks on these hosts cannot share memory; empty if they can.
std::string obstacle_of(const std::vector<int>& hosts, bool several) {
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) == static_cast<std::ptrdiff_t>(hosts.size())) return "";
  if (several) return Hosts(hosts).obstacle();
  const auto other = std::find_if(hosts.begin(), hosts.end(), [&](int host) { return host != hosts[0]; });
  return formatted("ranks 0 and {} are not on one host", other - hosts.begin());
}

/// `rank_` and `size_` are those of the job. A rank of this host is identified by its index in local_ranks_.
class Handover {
 public:
  Handover(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
           std::chrono::milliseconds timeout)
      : store_(store), rank_(cluster.rank), size_(cluster.world_size), timeout_(timeout), host_(host_of(cluster)) {}

  SharedAttempt run(bool several_hosts) {
    std::vector<std::string> names;
    std::string reason = attempt([this] {
      listener_.emplace(size_);
      own_ = OwnArea(size_);
    });
    reason = agreed("host", reason, host_, &names);
    if (!reason.empty()) return {nullptr, reason};
    const auto hosts = numbered(names);
    reason = obstacle_of(hosts, several_hosts);
    if (!reason.empty()) return {nullptr, reason};
    for (int rank = 0; rank < size_; ++rank)
      if (hosts[rank] == hosts[rank_]) local_ranks_.push_back(rank);
    local_rank_ = rank_index(local_ranks_, rank_);
    set("path", listener_->path());
    reason = attempt([this] {
      if (static_cast<int>(local_ranks_.size()) < size_) own_ = OwnArea(static_cast<int>(local_ranks_.size()));
      connect_all();
    });
    // Closed before any rank learns of a failure, so that no peer keeps waiting at these ends.
    listener_.reset();
    if (!reason.empty()) peers_.clear();
    reason = agreed("shared", reason, "yes", nullptr);
    if (!reason.empty()) return {nullptr, reason};
    return {std::make_unique<ProcessAreas>(local_rank_, std::move(own_), std::move(peers_), timeout_), "", hosts};
  }

 private:
  template <class F>
  static std::string attempt(F f) {
    try {
      f();
      return "";
    } catch (const std::exception& failure) {
      const std::string words = short_error_text(failure.what());
      return words.empty() ? "an unknown error" : words;
    }
  }

  std::string key(const std::string& what, int rank) const { return formatted("shm/{}/{}", what, rank); }
  void set(const std::string& what, const std::string& value) {
    store_->set(key(what, rank_), std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::string get(const std::string& what, int rank) {
    const auto bytes = store_->get(key(what, rank));
    return {bytes.begin(), bytes.end()};
  }

  /// Stores this rank's failure, or `own` if it has none, and reads those of all ranks. Returns the failure of the
  /// first rank that has one; otherwise `values` gets what all ranks stored.
  std::string agreed(const std::string& what, const std::string& trouble, const std::string& own,
                     std::vector<std::string>* values) {
    set(what, trouble.empty() ? own : "!" + trouble);
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(get(what, rank));
    for (int rank = 0; rank < size_; ++rank)
      if (all[rank].starts_with('!')) return formatted("rank {}: {}", rank, all[rank].substr(1));
    if (values) *values = std::move(all);
    return "";
  }

  /// Connects to the ranks before this one and accepts connections of the ranks after it.
  void connect_all() {
    const auto deadline = Clock::now() + timeout_;
    const auto count = static_cast<int>(local_ranks_.size());
    peers_.resize(local_ranks_.size());
    for (int peer = 0; peer < local_rank_; ++peer) {
      peers_[peer].link = Link::connect(get("path", local_ranks_[peer]));
      if (!peers_[peer].link.is_own_user())
        throw std::runtime_error(formatted("rank {} is another user's", local_ranks_[peer]));
      introduce(peers_[peer].link, deadline);
    }
    for (int missing = count - 1 - local_rank_; missing > 0;) {
      Link link = accept_next(deadline);
      if (!link.is_own_user()) continue;
      auto [peer, memory] = receive_memory(link, deadline);
      if (peer <= local_rank_ || peer >= count || peers_[peer].memory.data()) continue;
      introduce(link, deadline);
      peers_[peer].link = std::move(link);
      peers_[peer].memory = std::move(memory);
      --missing;
    }
    for (int peer = 0; peer < local_rank_; ++peer) {
      auto [who, memory] = receive_memory(peers_[peer].link, deadline);
      if (who != peer) throw std::runtime_error(formatted("rank {} did not answer", local_ranks_[peer]));
      peers_[peer].memory = std::move(memory);
    }
  }

  /// Accepts the next connection. Stops waiting if a rank has failed.
  Link accept_next(TimePoint deadline) {
    for (;;) {
      const auto now = Clock::now();
      if (auto link = listener_->accept(std::min(deadline, now + std::chrono::milliseconds(200)));
          link.descriptor() >= 0)
        return link;
      for (const int rank : local_ranks_)
        if (store_->check({key("shared", rank)}) && get("shared", rank).starts_with('!'))
          throw std::runtime_error(formatted("rank {} failed", rank));
      if (now >= deadline) throw std::runtime_error("a rank of this host did not connect in time");
    }
  }

  void introduce(const Link& link, TimePoint deadline) const {
    link.send(std::to_string(local_rank_), {own_.memory.descriptor().get()}, deadline);
  }

  /// The index of the rank at the other end, and its memory; -1 if it is not a rank of this job.
  std::pair<int, Segment> receive_memory(const Link& link, TimePoint deadline) const {
    LinkMessage message;
    try {
      message = link.recv(deadline);
    } catch (const std::runtime_error&) {
      return {-1, Segment()};
    }
    int who = -1;
    const char* end = message.text.data() + message.text.size();
    if (std::from_chars(message.text.data(), end, who).ptr != end) return {-1, Segment()};
    if (message.descriptors.empty()) throw std::runtime_error("this process can open no more files");
    return {who, Segment::map(message.descriptors[0], AreaLayout(static_cast<int>(local_ranks_.size())).bytes())};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const std::string host_;
  std::vector<int> local_ranks_;  ///< the ranks of the job on this host
  int local_rank_ = 0;            ///< index of this rank in local_ranks_
  std::optional<LinkListener> listener_;
  OwnArea own_;
  std::vector<Neighbour> peers_;
};

}  // namespace

SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout, bool several_hosts) {
  return Handover(cluster, store, timeout).run(several_hosts);
}

}  // namespace muster::comm
