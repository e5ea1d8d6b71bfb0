#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::cluster {

/// The status that a rank has reported to its launcher. A plain value. A rank loses another one if its connection to it
/// breaks or times out.
struct RankStatus {
  bool left_by_exception = false;  ///< an exception ended its runtime, and it has not created another one since
  std::int64_t lost_at = 0;        ///< when it lost that rank, in nanoseconds of the host's steady clock
  int lost_rank = -1;              ///< the rank of the job that it lost last; -1: none
  std::string reason;              ///< that error's id and message
  std::int64_t steps = -1;         ///< updates of its optimizers; -1: not counted
};

/// A page of memory that a rank writes and its launcher reads, also after the rank has ended for any reason.
/// A cheap handle; a default-constructed one is empty: it writes nothing, and nothing was reported.
/// Thread safety: any thread.
class Report {
 public:
  Report() = default;
  /// A new page, for the launcher; empty if none can be allocated. Its descriptor is closed on exec.
  static Report make();
  /// The page behind a descriptor that the launcher passed on, for the rank; empty if the descriptor is not a page, as
  /// in programs that a rank starts after it has closed its descriptors.
  static Report open(int descriptor);

  /// The descriptor to pass on, or -1. A page from make() owns it.
  int descriptor() const noexcept;

  /// The rank has completed a new rendezvous: clears its earlier reports.
  void start() const noexcept;
  /// An optimizer has updated its parameters for the `count`-th time.
  void step(std::int64_t count) const noexcept;
  /// An error about another rank's end or failure is about to be thrown.
  void lost(int rank, std::string_view reason) const noexcept;
  /// An operation that began at `begun` has succeeded: clears an error reported before that.
  void succeeded(std::chrono::steady_clock::time_point begun) const noexcept;
  void left_by_exception() const noexcept;

  RankStatus read() const;

 private:
  class Page;
  explicit Report(std::shared_ptr<Page> page) : page_(std::move(page)) {}

  std::shared_ptr<Page> page_;
};

}  // namespace muster::cluster
