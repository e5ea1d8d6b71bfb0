#include "base/log.h"

#include <atomic>
#include <cstdlib>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::log {
namespace {

constexpr std::string_view kNames[] = {"trace", "debug", "info", "warning", "error", "off"};
constexpr int kNone = -1;

thread_local int thread_rank = kNone;

// The log belongs to the process, as stderr does; this is its only state.
struct Process {
  std::atomic<Level> level{Level::warning};
  std::atomic<int> rank{kNone};
  // Blocking, on stderr; the level is checked before a message is made, so the logger passes everything.
  spdlog::logger logger{"muster", std::make_shared<spdlog::sinks::stderr_sink_mt>()};

  Process() {
    logger.set_level(spdlog::level::trace);
    logger.set_pattern("muster: %l: %v");
    const char* wanted = std::getenv("MUSTER_LOG");
    if (!wanted || !*wanted) return;
    try {
      level = parse_level(wanted);
    } catch (const Error& error) {
      logger.warn("variable MUSTER_LOG: {}", error.what());
    }
  }
};

Process& process() {
  // Never destroyed: destructors of other static objects may still log.
  static Process* const only = new Process;
  return *only;
}

}  // namespace

Level parse_level(std::string_view name) {
  if (name == "warn") return Level::warning;
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (name == kNames[i]) return static_cast<Level>(i);
  throw ConfigError("MU002", str("'", name, "' is not a log level", known_ones(kNames)));
}

Level level() noexcept { return process().level.load(std::memory_order_relaxed); }

void set_level(Level level) noexcept { process().level = level; }

void set_rank(int rank) noexcept { process().rank = rank; }

ThreadRank::ThreadRank(int rank) noexcept : before_(thread_rank) { thread_rank = rank; }
ThreadRank::~ThreadRank() { thread_rank = before_; }

void write(Level at, std::string_view message) noexcept {
  if (at < level() || at == Level::off) return;
  try {
    int rank = thread_rank != kNone ? thread_rank : process().rank.load();
    auto spdlog_level = static_cast<spdlog::level::level_enum>(at);
    if (rank == kNone) process().logger.log(spdlog_level, "{}", message);
    else process().logger.log(spdlog_level, "rank {}: {}", rank, message);
  } catch (...) {
    // A message that cannot be written has nowhere else to go.
  }
}

}  // namespace muster::log
