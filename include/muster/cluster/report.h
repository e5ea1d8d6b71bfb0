#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::cluster {

/// What a rank has told its launcher about itself. A plain value.
struct Standing {
  bool left_by_exception = false;  ///< an exception ended its runtime, and no other one was made since
  std::int64_t lost_at = 0;        ///< when it lost `lost_rank`, in nanoseconds of the host's steady clock
  int lost_rank = -1;              ///< the rank of the job that its last error is about; -1: none
  std::string reason;              ///< that error's id and words
  std::int64_t steps = -1;         ///< updates of its optimizers; -1: it counts none
};

/// A page of memory that a rank writes and its launcher reads, also when the rank has ended, whatever ended it.
/// A cheap handle; a default-made one leads nowhere: nothing is written, and nothing was told.
/// Thread safety: any thread.
class Report {
 public:
  Report() = default;
  /// A new page, for the launcher; leads nowhere where none can be had. Its descriptor is closed on exec.
  static Report make();
  /// The page behind a descriptor that the launcher handed on, for the rank; leads nowhere if it is none, as in the programs
  /// that a rank starts after it closed its descriptors.
  static Report open(int descriptor);

  /// The descriptor to hand on, or -1. The handle owns it.
  int descriptor() const noexcept;

  /// The rank has met the others anew: what it told before is void.
  void start() const noexcept;
  /// An optimizer has updated its parameters for the `count`-th time.
  void step(std::int64_t count) const noexcept;
  /// An error about another rank's end or failure is about to be thrown.
  void lost(int rank, std::string_view reason) const noexcept;
  /// An operation that was begun at `begun` has succeeded: an error before that was overcome.
  void well(std::chrono::steady_clock::time_point begun) const noexcept;
  void left_by_exception() const noexcept;

  Standing read() const;

 private:
  class Page;
  explicit Report(std::shared_ptr<Page> page) : page_(std::move(page)) {}

  std::shared_ptr<Page> page_;
};

}  // namespace muster::cluster
