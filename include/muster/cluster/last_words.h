#pragma once

#include <exception>
#include <optional>
#include <string>

#include "muster/cluster/report.h"

/// How a rank that our launcher started ends by a muster::Error that nobody caught: not by abort(), since such an error is no crash,
/// but with an exit code of its own, and its message is said once for all ranks that say the same. Other exceptions end it as ever.
namespace muster::cluster {

/// The exit code of a rank that ended by a muster::Error that nobody caught.
inline constexpr int kUncaughtError = 79;

/// The message of a muster::Error; nothing for any other exception, or none.
std::optional<std::string> words_of_error(const std::exception_ptr& exception);

/// For a launcher whose child, or which itself, is this page's rank: what the rank leaves in it is said by the launcher from now on.
void promise_to_say(const Report& report) noexcept;
/// Leaves the words in the page for the launcher. False if nobody promised to say them: the launcher is not this process's parent, such as
/// where the rank is started by a script, or `report` leads nowhere.
bool leave_last_words(const Report& report, const std::string& words) noexcept;
/// What leave_last_words() left; empty if nothing.
std::string read_last_words(const Report& report);

/// Ends the process with kUncaughtError, and writes what stdio holds back.
[[noreturn]] void end_by_error() noexcept;

/// In a process that our launcher started, as its variables say: from now on a muster::Error that nobody catches ends it with
/// kUncaughtError. read_cluster()'s object file calls it when the program is loaded; a handler that the program sets later counts instead.
bool end_by_uncaught_errors() noexcept;

}  // namespace muster::cluster
