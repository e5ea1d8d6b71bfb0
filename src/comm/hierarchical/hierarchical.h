#pragma once

#include "comm/hierarchical/hosts.h"
#include "comm/pairwise.h"
#include "comm/shared_tensor.h"

namespace muster::comm {

/// Collectives of ranks on several hosts. Large tensors go through the memory of each host, and between hosts once
/// instead of once per rank. Everything else, including the exchange of headers, works as in Pairwise.
/// Why: docs/decisions/0117-sums-along-the-hosts.md.
class Hierarchical final : public Pairwise {
 public:
  /// Requires: hosts without an obstacle; `within` has the ranks of this rank's host, in their order. `timeout` limits
  /// the forming of subgroups.
  Hierarchical(std::unique_ptr<Transport> between, std::unique_ptr<SharedAreas> within, Hosts hosts,
               bool two_level_sums, std::chrono::milliseconds timeout);

  bool shares_memory() const noexcept override { return true; }
  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  void dispatch(const Call& call) override;
  bool goes_by_hosts(const Operation& operation) const;
  void run_by_hosts(const Call& call, const HostContext& context);
  /// Allocates memory on each host; either all ranks get it or none.
  void allocate_buffer(const Call& call);
  /// Exchanges headers, and finds where the tensors of this host's ranks are: see HostContext::mapped.
  std::vector<const std::byte*> map_tensors(const Call& call, const at::Tensor& tensor);
  /// Makes the areas for those of `ranks` that are on this rank's host; either all of `ranks` get theirs or none does.
  /// `between` is the transport of the new group. Throws: CommError (MU401).
  std::unique_ptr<SharedAreas> split_areas(Transport& between, const std::vector<int>& ranks, const Hosts& hosts,
                                           const std::string& name);

  const Hosts hosts_;
  const bool two_level_sums_;
  const std::chrono::milliseconds timeout_;
  HostStaging within_;
  LiveBuffers buffers_;
  uint64_t last_buffer_number_ = 0;
};

}  // namespace muster::comm
