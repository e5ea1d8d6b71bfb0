#pragma once  // for other rooms

#include <sstream>
#include <string>
#include <string_view>

/// The diagnostic log: lines on stderr such as "muster: warning: rank 1: text". All functions may be called from any
/// thread. A line below the level costs one comparison.
namespace muster::log {

enum class Level { trace, debug, info, warning, error, off };

/// The level of this name: "trace", "debug", "info", "warning" (also "warn"), "error", "off".
/// Throws: ConfigError (MU002), listing the names, for any other word.
Level parse_level(std::string_view name);

/// The level of the process: initially that of the variable MUSTER_LOG, or `warning`.
Level level() noexcept;
void set_level(Level level) noexcept;

/// Adds the rank to every later line of the process; -1 removes it.
void set_rank(int rank) noexcept;

/// Adds the rank to the lines of this thread during its lifetime, for ranks that are threads.
class ThreadRank {
 public:
  explicit ThreadRank(int rank) noexcept;
  ~ThreadRank();
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

 private:
  int before_;
};

/// Writes one line if `at` is at or above the level of the process. Never throws.
void write(Level at, std::string_view message) noexcept;

/// Writes the parts one after another, as an ostream prints them.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
void debug(const Parts&... parts) {
  if (level() <= Level::debug) write(Level::debug, str(parts...));
}
template <class... Parts>
void info(const Parts&... parts) {
  if (level() <= Level::info) write(Level::info, str(parts...));
}
template <class... Parts>
void warning(const Parts&... parts) {
  if (level() <= Level::warning) write(Level::warning, str(parts...));
}
template <class... Parts>
void error(const Parts&... parts) {
  if (level() <= Level::error) write(Level::error, str(parts...));
}

}  // namespace muster::log
