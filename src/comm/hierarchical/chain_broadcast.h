#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// Sends parts of a tensor from one host to all ranks. Between hosts, the owners of a local rank form a chain and pass
/// parts away from the source in both directions. Within a host, parts go through its staging.
class ChainBroadcast {
 public:
  /// `tensor` is filled part by part.
  ChainBroadcast(const HostContext& context, const at::Tensor& tensor, int from_host);

  bool is_source() const noexcept { return context_.host() == from_; }
  /// On hosts other than the source: posts the receive of a part that this rank owns. The memory that is received into
  /// must no longer be needed once a host nearer to the source sends.
  void expect(const Part& part);
  /// On the source: sends a part that this rank owns to the next hosts.
  void pass_on(const Part& part);
  /// Gives all ranks of this host the parts of a chunk. On hosts other than the source, first waits for the parts that
  /// this rank expects and passes them on. Collective on the host, in one order.
  void broadcast_on_host(const Chunk& chunk);
  /// Waits until everything that this rank passed on has been sent. Mapped memory may still be read afterwards.
  void finish();

  std::byte* at(const Part& part) const { return at_element(tensor_, part.range.begin); }
  std::size_t bytes(const Part& part) const {
    return static_cast<std::size_t>(part.range.size()) * tensor_.element_size();
  }

 private:
  void send_to(int host, const Part& part);
  void wait_arrived(const Chunk& chunk);
  void copy_mapped(const Chunk& chunk);

  const HostContext& context_;
  const at::Tensor& tensor_;
  const int from_;
  std::deque<Transport::Request> arrivals_;
  std::vector<Transport::Request> sends_;
};

/// Sends the root's tensor to all ranks. Collective.
void broadcast_by_hosts(const HostContext& context, const at::Tensor& tensor, int root);

}  // namespace muster::comm
