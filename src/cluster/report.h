#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
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

// The end of a rank that Muster's launcher started, after an uncaught muster::Error. Such an error is not a crash, so
// the rank does not abort(): it exits with kUncaughtError, and the launcher prints each message once for all ranks
// that have it. Other exceptions end the process as usual.
// Why: docs/decisions/0074-an-uncaught-error-is-no-crash.md.

/// Exit code of a rank that ended by an uncaught muster::Error; sysexits.h ends at 78.
inline constexpr int kUncaughtError = 79;

/// The message of a muster::Error; std::nullopt for any other exception or a null pointer.
std::optional<std::string> error_message_of(const std::exception_ptr& exception);

/// For a launcher that is the parent of this page's rank, or is that rank itself: promises to print the message that
/// the rank leaves in the page.
void promise_to_print(const Report& report) noexcept;
/// Writes the message `words` to the page for the launcher. Returns false if no launcher will print it: the launcher is
/// not this process's parent (for example, a script started the rank), `report` is empty, or the message is too long
/// for the page.
bool write_error_message(const Report& report, const std::string& words) noexcept;
/// The message that write_error_message() wrote; empty if there is none.
std::string read_error_message(const Report& report);

/// Flushes stdout and stderr before a process ends by _exit(). Skips a stream that another thread is writing to.
void flush_stdio() noexcept;

/// Flushes stdio and ends the process with kUncaughtError.
[[noreturn]] void end_by_error() noexcept;

/// If the environment shows that Muster's launcher started this process, an uncaught muster::Error ends it with
/// kUncaughtError from now on, and the call returns true. The object file of read_cluster_environment() calls it when
/// the program is loaded; a terminate handler that the program sets later replaces it.
bool install_terminate_handler() noexcept;

}  // namespace muster::cluster
