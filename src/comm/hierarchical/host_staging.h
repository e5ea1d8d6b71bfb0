#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/shared_memory/areas.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// How the ranks of one host give parts of tensors to each other: in rounds, by a staging buffer of each rank.
/// Ranks are those of the group. Thread safety: one thread at a time, except abort().
class HostStaging {
 public:
  /// What one buffer holds.
  static constexpr std::size_t kBytes = AreaLayout::kStagingBytes;

  HostStaging(std::unique_ptr<SharedAreas> areas, int first_rank) : areas_(std::move(areas)), first_(first_rank) {
    areas_->set_first_global_rank(first_rank);
  }

  int first() const noexcept { return first_; }
  int size() const noexcept { return areas_->size(); }

  /// `fill` writes to this rank's buffer, then `use` reads those of the others by of(). A rank that is alone on its
  /// host fills nothing. Throws: TransportFailure; CommError (MU402).
  /// Collective on the host.
  void round(TimePoint deadline, const std::function<void(std::byte*)>& fill, const std::function<void()>& use);
  /// That rank's buffer, filled in this round. Throws: TransportFailure.
  const std::byte* of(int rank, TimePoint deadline);

  /// A round without buffers, for what is in memory that ranks share. Throws: TransportFailure. Collective on the host.
  void arrive();
  /// Until that rank has made this round, too. Throws: TransportFailure.
  void wait(int rank, TimePoint deadline);
  /// As SharedAreas has it, with a part for each rank of a group of `ranks`; those of other hosts are null.
  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, uint64_t number, int ranks, TimePoint deadline);

  void abort(const std::string& cause) noexcept { areas_->abort(cause); }
  void close() noexcept { areas_->close(); }
  /// Of some ranks of this host, for members only. Throws: CommError (MU401). Collective.
  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name);

 private:
  /// What fails in the areas names a rank of the host.
  template <class F>
  auto in_ranks_of_group(F f);

  const std::unique_ptr<SharedAreas> areas_;
  const int first_;
  uint64_t rounds_ = 0;
};

}  // namespace muster::comm
