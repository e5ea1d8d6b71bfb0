#pragma once

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace muster::launcher::testing {

/// Whether a Setup::terminal can be had here: a container may have none.
bool has_terminals();

/// A process started by a test, its output read through pipes. Every wait is bounded.
/// The destructor kills it.
class Process {
 public:
  struct Setup {
    std::vector<std::string> environment;  ///< "NAME=value", beside those of the test
    std::string input;                     ///< what it can read from stdin
    bool terminal = false;                 ///< stdout is a terminal of 80 columns instead of a pipe
  };
  explicit Process(const std::vector<std::string>& command) : Process(command, Setup()) {}
  Process(const std::vector<std::string>& command, const Setup& setup);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const { return pid_; }
  void signal(int number) const;
  /// Next line of stdout that contains `text`, waiting for it; "" at the end of output.
  std::string line_with(const std::string& text);
  /// Waits for the end; the exit code, or 128 + signal. Afterwards out() and error() hold all output.
  int wait();
  std::string out() const { return out_; }
  std::string error() const { return error_; }
  std::vector<std::string> out_lines() const;

 private:
  bool read_some();
  void reap();

  int code_ = -1;
  int err_fd_ = -1;
  std::string error_, out_;
  int out_fd_ = -1;
  int pid_ = -1;
  size_t seen_ = 0;
};

/// Watches processes that are nobody's children of ours, by id.
class Watched {
 public:
  /// Requires: it runs.
  explicit Watched(int pid);
  Watched(Watched&& other) noexcept;
  ~Watched();
  /// Whether it ends within the bound of all waits (which is far above the promised 2 s, for slow machines).
  bool ends() const;

 private:
  int fd_;
};

/// The `muster run` command line with these arguments.
std::vector<std::string> muster_run(const std::vector<std::string>& arguments);

/// The program that the tests start as rank; its first argument says what it does.
std::string rank_program();

/// A line "pid 123" of a rank, as a watched process. Fails the test if there is none.
Watched watched_rank(Process& process, int rank);

/// How often `part` stands in `text`.
int times(const std::string& text, const std::string& part);

/// What the descriptors of a process are, without the numbers of pipes and sockets.
std::multiset<std::string> descriptors_of(int process);

/// A new empty folder under the system's temporary folder, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text, int mode) const;
  std::string read(const std::string& name) const;

 private:
  std::string path_;
};

}  // namespace muster::launcher::testing
