#pragma once

#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/in_time.h"

namespace muster::comm {

/// Milliseconds by which an answer may come later than the store's timeout.
inline constexpr std::chrono::milliseconds kLateAnswer{2000};

/// A store whose calls take at most its timeout (or a longer one given to wait()) plus kLateAnswer. c10d's client has
/// no such bound: it waits forever for a server whose process is stopped.
/// Throws, from all functions: std::runtime_error if the server has not answered by then, and in every later call.
/// Thread-safe; calls are made one after the other.
/// Why: docs/decisions/0165-one-deadline-for-the-rendezvous.md.
class BoundedStore final : public c10d::Store {
 public:
  /// `place` tells where the store is; used in messages.
  BoundedStore(c10::intrusive_ptr<c10d::Store> store, std::string place);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override;
  void queuePush(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;

 private:
  /// Calls `function` with the store. It may wait for `waits`, or for the timeout if that is longer.
  template <class F>
  auto call(F function, std::chrono::milliseconds waits = {});

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string place_;
  std::mutex mutex_;
  bool is_silent_ = false;  // guarded by the mutex, like the calls
};

}  // namespace muster::comm
