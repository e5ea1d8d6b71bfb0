#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// How parts of a tensor get from one host to all ranks: along a chain of hosts, between the owners of a local rank,
/// away from it in both directions; and on each host through its staging.
class ChainBroadcast {
 public:
  /// The tensor is filled part by part.
  ChainBroadcast(const HostContext& context, const at::Tensor& tensor, int from_host);

  bool is_source() const noexcept { return context_.host() == from_; }
  /// On other hosts: posts the receive of a part that this rank owns. What is there is not needed any more once a host
  /// nearer to the source sends it.
  void expect(const Part& part);
  /// On the source: sends on a part that this rank owns.
  void pass_on(const Part& part);
  /// Gives all ranks of this host the parts of a chunk; on other hosts than the source it waits for those that this
  /// rank expects, and passes them on. Collective on the host, in the same order.
  void broadcast_on_host(const Chunk& chunk);
  /// Waits until what was sent on has left. Then what is mapped may still be read.
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

/// Gives all ranks the tensor of the root. Collective.
void broadcast_by_hosts(const HostContext& context, const at::Tensor& tensor, int root);

}  // namespace muster::comm
