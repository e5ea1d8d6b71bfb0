#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::cluster {

/// The status that a rank has reported to its launcher. A plain value. A rank has lost another one if its connection to
/// it broke or timed out.
struct RankStatus {
  bool left_by_exception = false;  ///< an exception ended its runtime, and it has not created another one since
  std::int64_t lost_at = 0;        ///< time when it lost that rank, in nanoseconds of the host's steady clock
  int lost_rank = -1;              ///< rank of the job that it lost last; -1: none
  std::string reason;              ///< id and message of that error
  std::int64_t steps = -1;         ///< number of updates of its optimizers; -1: not counted
};

// Why: docs/decisions/0053-ranks-report-to-their-launcher-in-a-page.md.

/// A page of memory that a rank writes and its launcher reads, even after the rank has ended. A cheap handle; a
/// default-constructed one is empty: writes have no effect, and reads return an empty status.
/// Thread safety: any thread.
class Report {
 public:
  Report() = default;
  /// A new page, for the launcher; empty if none can be allocated. Its descriptor is closed on exec.
  static Report make();
  /// The page behind a descriptor from the launcher, for the rank; empty if the descriptor is not a page, as in
  /// programs that a rank starts after it has closed its descriptors.
  static Report open(int descriptor);

  /// The descriptor to pass on, or -1. A page from make() owns it.
  int descriptor() const noexcept;

  /// Clears earlier reports. Called when the rank has completed a new rendezvous.
  void start() const noexcept;
  /// Reports that an optimizer has updated its parameters for the `count`-th time.
  void step(std::int64_t count) const noexcept;
  /// Reports an error about another rank's end or failure that is about to be thrown.
  void lost(int rank, std::string_view reason) const noexcept;
  /// Clears a reported error that is older than `begun`, the start of an operation that has succeeded.
  void succeeded(std::chrono::steady_clock::time_point begun) const noexcept;
  void left_by_exception() const noexcept;

  RankStatus read() const;

 private:
  class Page;
  explicit Report(std::shared_ptr<Page> page) : page_(std::move(page)) {}

  std::shared_ptr<Page> page_;
};

}  // namespace muster::cluster
