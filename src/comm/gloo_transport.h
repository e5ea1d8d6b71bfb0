#pragma once

#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/mutex.h"
#include "cluster/secret.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Checks once a second, in one thread of the process, transports in which a wait might never end.
/// Thread-safe.
class TransportWatchdog {
 public:
  /// The watchdog of this process, which is destroyed with its last owner.
  static std::shared_ptr<TransportWatchdog> of_process();

  TransportWatchdog();
  ~TransportWatchdog();
  TransportWatchdog(const TransportWatchdog&) = delete;
  TransportWatchdog& operator=(const TransportWatchdog&) = delete;

  /// `look` is called once a second. It does not throw, and calls nothing of this object.
  void add(const void* owner, std::function<void()> look);
  /// When this returns, the owner's `look` is not running and will not be called again.
  void remove(const void* owner);

 private:
  void run();

  base::Mutex mutex_;
  base::Condition changed_;
  std::map<const void*, std::function<void()>> looks_ MUSTER_GUARDED_BY(mutex_);
  bool ends_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// The settings of a transport over gloo.
struct GlooSetup {
  std::string interface;  ///< empty: GLOO_SOCKET_IFNAME, or loopback if `one_node`, or what the host name resolves to
  bool one_node = true;
  std::chrono::milliseconds connect_timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  cluster::Secret secret;  ///< the secret with which ranks authenticate; none: any peer is accepted as the rank
};

/// A full mesh of connections by ProcessGroupGloo. Throws: CommError (MU058), (MU067) if a peer does not have the
/// secret.
std::unique_ptr<Transport> make_gloo_transport(const GlooSetup& setup, const std::string& name, int rank, int size);

/// A plain ProcessGroupGloo, used as a backend to plug in. Throws: CommError (MU058).
c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const GlooSetup& setup, const std::string& name, int rank, int size);

}  // namespace muster::comm
