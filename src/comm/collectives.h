#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  /// Whether it takes tensors on devices as they are, in the order of the current stream. Other collectives read and
  /// write their tensors' memory.
  virtual bool takes_device_tensors() const noexcept { return false; }
  /// Whether it has shared_buffer.
  virtual bool shares_memory() const noexcept { return false; }
  /// PeerAccess::read_contiguous: of how many bytes a part has to be a multiple; 0: it has none such.
  virtual std::size_t part_alignment() const noexcept { return 0; }
  virtual void abort(const std::string& cause) noexcept = 0;
  virtual void close() noexcept = 0;
  /// Collective among `ranks`, all members.
  virtual std::unique_ptr<Collectives> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

/// Direct exchange of headers and payloads over a transport.
std::unique_ptr<Collectives> make_pairwise(std::unique_ptr<Transport> transport);
/// A group of one.
std::unique_ptr<Collectives> make_solo();
/// Rank `rank` of `size` without other processes: as if all ranks had the same values.
std::unique_ptr<Collectives> make_fake_collectives(int rank, int size);

}  // namespace muster::comm
