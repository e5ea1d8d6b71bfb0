#pragma once

#include <string_view>

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
  static int forks() noexcept;
  [[noreturn]] static void refuse(const char* what, std::string_view name);

  int forks_;
};

}  // namespace muster::comm
