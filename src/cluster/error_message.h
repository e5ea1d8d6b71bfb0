#pragma once  // for other rooms

#include <exception>
#include <optional>
#include <string>

#include "cluster/report.h"

/// The end of a rank that Muster's launcher started, after an uncaught muster::Error. Such an error is not a crash, so
/// the rank does not abort(): it exits with kUncaughtError, and the launcher prints each message once for all ranks
/// that have it. Other exceptions end the process as usual.
/// Why: docs/decisions/0074-an-uncaught-error-is-no-crash.md.
namespace muster::cluster {

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
