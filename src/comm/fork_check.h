#pragma once

#include <pthread.h>

#include <atomic>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {

/// Checks whether this process is the one in which the object was made. A fork of that process lacks its threads,
/// sockets and mappings, and waiting for them never ends. Thread-safe.
class ForkCheck {
 public:
  ForkCheck() noexcept : forks_(forks()) {}
  bool is_forked() const noexcept { return forks_ != forks(); }
  /// `what` and `name` say what is used, such as "group " and "world". Throws: CommError (MU571) in a fork.
  void require_same_process(const char* what, std::string_view name = {}) const {
    if (is_forked()) refuse(what, name);
  }

 private:
  static int forks() noexcept { return forks_before_this_process.load(std::memory_order_relaxed); }
  [[noreturn]] static void refuse(const char* what, std::string_view name) {
    throw CommError("MU571", formatted("{}{} belongs to the process from which this one was forked. Use groups in that "
                                       "process only, or connect() again in this one",
                                       what, name));
  }

  static inline std::atomic<int> forks_before_this_process = 0;
  // Registered before main(), so that no group exists without the handler.
  [[maybe_unused]] static inline const int kRegistered =
      ::pthread_atfork(nullptr, nullptr, [] { ++forks_before_this_process; });

  int forks_;
};

}  // namespace muster::comm
