#include "launcher/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace muster::launcher::testing {
namespace {

constexpr int kBound = 60000;  // ms; only a failing test waits so long

int open_pid(int pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

void append(int& fd, std::string& to) {
  char bytes[1 << 16];
  ssize_t size = read(fd, bytes, sizeof bytes);
  if (size > 0) return void(to.append(bytes, static_cast<size_t>(size)));
  close(fd);
  fd = -1;
}

int open_terminal(int& rank_end) {
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  unlockpt(master);
  rank_end = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  winsize size{25, 80, 0, 0};
  ioctl(master, TIOCSWINSZ, &size);
  return master;
}

}  // namespace

bool has_terminals() {
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master >= 0) close(master);
  return master >= 0;
}

Process::Process(const std::vector<std::string>& command, const Setup& setup) {
  int in[2], out[2], err[2];
  EXPECT_EQ(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
  if (setup.terminal) {
    close(out[0]), close(out[1]);
    out[0] = open_terminal(out[1]);
  }
  std::vector<char*> arguments, variables;
  for (const auto& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const auto& line : setup.environment) variables.push_back(const_cast<char*>(line.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], 0), dup2(out[1], 1), dup2(err[1], 2);
    // Whatever started the tests is no launcher of theirs.
    for (auto name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MUSTER_JOB", "OMP_NUM_THREADS"})
      unsetenv(name);
    for (char* line : variables) putenv(line);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  [[maybe_unused]] auto written = write(in[1], setup.input.data(), setup.input.size());
  close(in[0]), close(in[1]), close(out[1]), close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Process::~Process() {
  if (pid_ > 0 && code_ < 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) close(out_fd_);
  if (err_fd_ >= 0) close(err_fd_);
}

void Process::signal(int number) const { kill(pid_, number); }

bool Process::read_some() {
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  pollfd entries[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (poll(entries, 2, kBound) <= 0) {
    ADD_FAILURE() << "no output for too long; so far:\n" << out_ << error_;
    return false;
  }
  if (entries[0].revents) append(out_fd_, out_);
  if (entries[1].revents) append(err_fd_, error_);
  return true;
}

std::string Process::line_with(const std::string& text) {
  for (;;) {
    size_t end;
    while ((end = out_.find('\n', seen_)) != std::string::npos) {
      std::string line = out_.substr(seen_, end - seen_);
      seen_ = end + 1;
      if (line.find(text) != std::string::npos) return line;
    }
    if (!read_some()) return "";
  }
}

int Process::wait() {
  while (read_some()) {}
  int fd = open_pid(pid_);
  pollfd entry{fd, POLLIN, 0};
  if (poll(&entry, 1, kBound) != 1) {
    ADD_FAILURE() << "process " << pid_ << " does not end";
    kill(pid_, SIGKILL);
  }
  close(fd);
  int status = 0;
  waitpid(pid_, &status, 0);
  return code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<std::string> Process::out_lines() const {
  std::vector<std::string> lines;
  std::istringstream text(out_);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

Watched::Watched(int pid) : fd_(open_pid(pid)) { EXPECT_GE(fd_, 0) << "process " << pid << " does not run"; }
Watched::Watched(Watched&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Watched::~Watched() {
  if (fd_ >= 0) close(fd_);
}
bool Watched::ends() const {
  pollfd entry{fd_, POLLIN, 0};
  return fd_ >= 0 && poll(&entry, 1, kBound) == 1;
}

std::vector<std::string> muster_run(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{MUSTER_BINARY_DIR "/bin/muster", "run"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string rank_program() { return MUSTER_BINARY_DIR "/tests/launcher_rank"; }

Watched watched_rank(Process& process, int rank) {
  std::string words = "rank " + std::to_string(rank) + " pid ";
  std::string line = process.line_with(words);
  EXPECT_FALSE(line.empty()) << "no line '" << words << "'\n" << process.error();
  if (line.empty()) return Watched(getpid());
  return Watched(std::stoi(line.substr(line.find(words) + words.size())));
}

std::multiset<std::string> descriptors_of(int process) {
  std::multiset<std::string> result;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone)) {
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    result.insert(target.substr(0, target.find_first_of("0123456789")));
  }
  return result;
}

Folder::Folder() {
  std::string path = std::filesystem::temp_directory_path() / "muster-test-XXXXXX";
  path_ = mkdtemp(path.data());
}
Folder::~Folder() { std::filesystem::remove_all(path_); }

std::string Folder::write(const std::string& name, const std::string& text, int mode) const {
  std::string path = path_ + "/" + name;
  std::ofstream(path) << text;
  chmod(path.c_str(), static_cast<mode_t>(mode));
  return path;
}

std::string Folder::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(path_ + "/" + name).rdbuf();
  return text.str();
}

}  // namespace muster::launcher::testing
