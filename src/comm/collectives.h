#pragma once

#include <algorithm>
#include <numeric>

#include "comm/operation.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The operations of one group, one at a time and in order; one implementation per kind of backend.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// Runs the operation to its end. Throws: CommError (MU050), TransportFailure.
  virtual void run(Operation& operation, const std::string& group, TimePoint deadline) = 0;
  /// Whether it accepts tensors on devices directly, in the order of the current stream. Other collectives read and
  /// write their tensors' memory.
  virtual bool takes_device_tensors() const noexcept { return false; }
  /// Whether it implements allocate_shared_buffer.
  virtual bool shares_memory() const noexcept { return false; }
  /// Parts of a PeerAccess::read_contiguous buffer must be multiples of this many bytes; 0: not supported.
  virtual std::size_t part_alignment() const noexcept { return 0; }
  virtual void abort(const std::string& cause) noexcept = 0;
  virtual void close() noexcept {}
  /// Makes the collectives of a subgroup. Collective among `ranks`, which are members of this group.
  virtual std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

/// Exchanges headers and payloads directly over a transport.
std::unique_ptr<Collectives> make_pairwise(std::unique_ptr<Transport> transport);
/// The collectives of a group of one; or those of rank `rank` of `size` without other processes: results are as if all
/// ranks had this rank's values.
std::unique_ptr<Collectives> make_local(int rank = 0, int size = 1);

/// The index of a rank in `ranks`; the size of `ranks` if the rank is not among them.
inline int rank_index(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// The ranks 0 to size - 1.
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace muster::comm
