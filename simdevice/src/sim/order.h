#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace muster::sim {

/// A place where the host called something: return addresses, which are converted to text only when it is read.
class CallSite {
 public:
  /// The call site of the caller.
  static CallSite here();
  /// The innermost functions of the program, not of LibTorch or the simulator, with the autograd node that ran, if one
  /// did: "step at train.cpp:17, called by main at train.cpp:40".
  std::string text() const;

 private:
  static constexpr size_t kMost = 40;
  std::array<void*, kMost> frames_ = {};
  int count_ = 0;
  std::string node_;
};

/// Bytes that a command reads or writes, as addresses of the device or of pinned memory.
struct Access {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool writes = false;
};

/// How many commands of each stream are known to come before.
class Clock {
 public:
  uint64_t of(size_t stream) const { return stream < times_.size() ? times_[stream] : 0; }
  uint64_t tick(size_t stream);
  void join(const Clock& other);

 private:
  std::vector<uint64_t> times_;
};

/// What the host asked for, and where.
struct Origin {
  std::string what;
  CallSite site;
};

/// An access to some bytes, identified by stream and time.
struct Use {
  size_t stream = 0;
  uint64_t time = 0;  ///< number of the command in its stream; 0: never
  std::shared_ptr<const Origin> origin;
};

constexpr size_t kHost = SIZE_MAX;  ///< stream number of accesses by the host itself

struct FoundRace {
  Use first, second;
  bool first_writes = false, second_writes = false;
};

/// Vector clocks of streams and of the host, and the last accesses to each byte. Clocks follow the calls of the host,
/// not the times at which commands run, so a program has equal races under every seed. All threads of the host count as
/// one: what one of them has waited for, all have. Thread safety: none; used under the machine's lock.
class Order {
 public:
  /// Adds the next command of a stream. Its accesses must be ordered after earlier accesses to the same bytes.
  void add(size_t stream, const std::string& what, const std::vector<Access>& accesses);
  /// Adds an access of the host itself, made now.
  void add_of_host(const std::string& what, const std::vector<Access>& accesses);
  /// Reports that the host accesses what `first` uses without having waited for it.
  void report_host(const Use& first, bool first_writes, bool host_writes);

  const Clock& at(size_t stream);
  void wait(size_t stream, const Clock& awaited) { clock(stream).join(awaited); }
  void host_waited(const Clock& awaited) { host_.join(awaited); }
  bool host_has_waited_for(const Use& use) const { return is_before(use, host_); }

  /// Frees memory of a stream. What other streams have done there must be ordered before, or they must be in
  /// `recorded`.
  void release(size_t stream, const std::vector<size_t>& recorded, const char* begin, const char* end);
  void allocate(size_t stream, const char* begin, const char* end);
  void forget(const char* begin, const char* end);
  /// The use of the command that was added last; an empty Use if it accesses nothing or races are ignored.
  const Use& last_use() const { return last_; }

  /// The races found since the last call, one for each pair of commands and streams.
  std::vector<FoundRace> take_races();
  bool has_races() const { return !found_.empty(); }
  bool is_on = true;

 private:
  /// Bytes with equal last accesses.
  struct Range {
    const char* end = nullptr;
    Use write;
    std::vector<Use> reads;  ///< reads since the last write, the last one of each stream
  };
  using Ranges = std::map<const char*, Range>;

  static bool is_before(const Use& use, const Clock& clock) { return clock.of(use.stream) >= use.time; }
  Clock& clock(size_t stream);
  void report(const Use& first, bool first_writes, const Use& second, bool second_writes);
  void split(const char* at);
  void check(const Access& access, const Use& use, const Clock& clock);
  void read(const Access& access, const Use& use);
  void write(const char* begin, const char* end, const Use& use);

  std::vector<Clock> clocks_;
  Clock host_;
  Use last_;
  Ranges ranges_;
  std::vector<FoundRace> found_;
  std::set<std::string> known_;
};

}  // namespace muster::sim
