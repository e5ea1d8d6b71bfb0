#pragma once

namespace muster::comm {

/// Whether this process is the one in which the object was made, and not a fork of it: there, threads, sockets and
/// mappings of the other one are missing, and waiting for them never ends. Thread-safe.
class ForkCheck {
 public:
  ForkCheck() noexcept : forks_(forks()) {}
  bool is_forked() const noexcept { return forks_ != forks(); }
  /// `what`: "group world". Throws: CommError (MU571) in a fork.
  void require_same_process(const char* what) const {
    if (is_forked()) refuse(what);
  }

 private:
  static int forks() noexcept;
  [[noreturn]] static void refuse(const char* what);

  int forks_;
};

}  // namespace muster::comm
