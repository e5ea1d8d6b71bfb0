#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "muster/base/format.h"

namespace muster::comm {
class Communicator;
}

namespace muster {

/// Writes lines to the diagnostic log: by default on the main rank only, so that a line appears once for all ranks.
///   log.info("epoch {}", epoch);   log.everywhere().warning("rank is slow");   log.in_order().info("{} samples",
///   seen);
/// Lines below the log's level are not formatted. Thread safety: one thread at a time.
class Logger {
 public:
  Logger(std::string name, const comm::Communicator& group);

  /// Returns a logger that writes on every rank.
  Logger everywhere() const { return with(Where::every); }
  /// Returns a logger that writes on every rank, one rank after another. Collective: each line.
  Logger in_order() const { return with(Where::in_order); }

  template <class... A>
  void debug(std::string_view text, const A&... values) const {
    line(Level::debug, text, values...);
  }
  template <class... A>
  void info(std::string_view text, const A&... values) const {
    line(Level::info, text, values...);
  }
  template <class... A>
  void warning(std::string_view text, const A&... values) const {
    line(Level::warning, text, values...);
  }
  template <class... A>
  void error(std::string_view text, const A&... values) const {
    line(Level::error, text, values...);
  }

 private:
  enum class Level { debug, info, warning, error };
  enum class Where { main, every, in_order };
  Logger with(Where where) const {
    Logger other = *this;
    other.where_ = where;
    return other;
  }
  template <class... A>
  void line(Level level, std::string_view text, const A&... values) const {
    const bool shown = wanted(level);
    write(level, shown, shown ? formatted(text, values...) : std::string());
  }
  bool wanted(Level level) const noexcept;
  void write(Level level, bool shown, const std::string& text) const;

  std::string name_;
  std::shared_ptr<const comm::Communicator> group_;
  Where where_ = Where::main;
};

}  // namespace muster
