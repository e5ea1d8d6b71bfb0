#include "launcher/console.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/log.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

constexpr size_t kFull = size_t{1} << 20;  // bytes of waiting output at which ranks must wait
constexpr size_t kCertain = 4096;          // PIPE_BUF in bytes: the least that a writable pipe accepts
constexpr std::string_view kEraseLine = "\r\x1b[K";

bool writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT);
}

constexpr size_t kTailLines = 10;                 // lines kept for the message about a failure
constexpr size_t kTailWidth = 500;                // limit on a kept line in bytes
constexpr size_t kLongestLine = size_t{1} << 16;  // longer lines are split, so that a rank cannot fill the memory

/// Recognizes a stack frame: LibTorch prints some thirty of them after the text of an exception.
bool is_frame(std::string_view line) {
  constexpr std::string_view kStart = "frame #";
  return line.starts_with(kStart) && line.size() > kStart.size() && line[kStart.size()] >= '0' &&
         line[kStart.size()] <= '9' && line.find(": ") != line.npos;
}

}  // namespace

Screen::Screen(int fd) : fd_(fd), terminal_(isatty(fd) == 1) {}

bool Screen::full() const noexcept { return buffer_.size() > kFull; }

void Screen::begin_line() {
  if (!live_.empty()) buffer_ += kEraseLine;
  else if (!at_line_start_) buffer_ += '\n';
  at_line_start_ = true;
}

void Screen::add_line(std::string_view prefix, std::string_view line) {
  begin_line();
  buffer_.append(prefix).append(line) += '\n';
  buffer_ += live_;
}

void Screen::add_unfinished(std::string_view prefix, std::string_view line) {
  if (!prefix.empty() || !live_.empty()) return add_line(prefix, line);
  begin_line();
  buffer_ += line;
  at_line_start_ = false;
}

void Screen::set_live(std::string text) {
  if (text == live_) return;
  begin_line();
  buffer_ += text;
  live_ = std::move(text);
}

void Screen::flush() {
  do {
    ssize_t written = write(fd_, buffer_.data(), std::min(buffer_.size(), kCertain));
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // The output has lost its reader: the ranks continue, and the output is dropped.
    if (written < 0) return buffer_.clear();
    buffer_.erase(0, static_cast<size_t>(written));
  } while (!buffer_.empty() && writable(fd_));
}

void Tail::add(std::string_view line) {
  if (is_frame(line)) return;
  lines_.emplace_back(line.substr(0, kTailWidth));
  if (lines_.size() > kTailLines) lines_.pop_front();
}

void RankLog::add(const Screen* shown_on, std::string_view bytes) {
  if (!file_ || bytes.empty()) return;
  const bool breaks = !at_line_start_ && last_ != shown_on;
  const auto text = (breaks ? "\n" : "") + std::string(bytes);
  [[maybe_unused]] auto written = write(file_.get(), text.data(), text.size());
  at_line_start_ = bytes.back() == '\n';
  last_ = shown_on;
}

void RankLog::say(std::string_view line) { add(nullptr, std::string(line) + "\n"); }

void RankOutput::add(std::string_view bytes) {
  if (setup_.log) setup_.log->add(setup_.screen, bytes);
  for (size_t at = 0; at < bytes.size();) {
    size_t special = std::min(bytes.find_first_of("\r\n", at), bytes.size());
    if (special > at) {
      if (returned_) line_.clear();
      returned_ = false;
      line_ += bytes.substr(at, special - at);
      at = special;
      if (line_.size() > kLongestLine) end_line();
      continue;
    }
    if (bytes[at++] == '\n') end_line();
    else returned_ = true;
  }
  if (setup_.live) setup_.screen->set_live(line_.empty() ? "" : setup_.prefix + line_);
}

void RankOutput::finish() {
  if (!line_.empty()) end_line(true);
}

void RankOutput::end_line(bool unfinished) {
  if (setup_.live) setup_.screen->set_live("");
  if (unfinished) setup_.screen->add_unfinished(setup_.prefix, line_);
  else setup_.screen->add_line(setup_.prefix, line_);
  setup_.tail->add(line_);
  line_.clear();
  returned_ = false;
}

namespace {

bool same_file(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// A pseudoterminal for rank 0. It passes bytes on unchanged, so that the launcher sees exactly what the rank writes.
/// The slave is opened through the master, since a container may lack /dev/pts. Empty if the machine has no
/// pseudoterminals.
Pipe make_terminal() {
  Descriptor master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!master || unlockpt(master.get()) != 0) return {};
  Descriptor rank(ioctl(master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!rank) return {};
  termios mode{};
  tcgetattr(rank.get(), &mode);
  mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  tcsetattr(rank.get(), TCSANOW, &mode);
  return {std::move(master), std::move(rank)};
}

}  // namespace

Console::Console(Setup setup) : out_(STDOUT_FILENO), setup_(std::move(setup)) {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) err_ = std::make_unique<Screen>(STDERR_FILENO);
  if (setup_.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(setup_.log_dir, error);
  if (error) throw LaunchError("MU037", "cannot make the log folder '" + setup_.log_dir + "': " + error.message());
}

Descriptor Console::open_log(int rank) const {
  if (setup_.log_dir.empty()) return Descriptor();
  std::string path = setup_.log_dir + "/rank_" + std::to_string(rank) + ".log";
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | (setup_.append ? 0 : O_TRUNC) | O_APPEND | O_CLOEXEC, 0644));
  if (!file)
    throw LaunchError("MU037", "cannot write the log file '" + path + "': " + std::generic_category().message(errno));
  return file;
}

Console::Ends Console::open_rank(int rank) {
  const bool live = tails_.empty() && out_.is_terminal();
  RankOutput::Setup setup{.log = &logs_.emplace_back(open_log(rank)),
                          .live = live,
                          .prefix = setup_.prefix ? "[" + std::to_string(rank) + "] " : "",
                          .screen = &out_,
                          .tail = &tails_.emplace_back()};
  Ends ends;
  ends.output = add_stream(setup, live);
  if (!err_) {
    ends.error = Descriptor(fcntl(ends.output.get(), F_DUPFD_CLOEXEC, 3));
    return ends;
  }
  setup.live = false;
  setup.screen = err_.get();
  ends.error = add_stream(setup, false);
  return ends;
}

Descriptor Console::add_stream(RankOutput::Setup setup, bool terminal) {
  auto ends = terminal ? make_terminal() : Pipe();
  if (ends.reading) {
    master_ = ends.reading.get();
    resize();
  } else {
    ends = make_pipe();
  }
  if (!ends.reading)
    throw LaunchError("MU034", log::str("no pipe for the output of a rank: ", std::generic_category().message(errno)));
  fcntl(ends.reading.get(), F_SETFL, O_NONBLOCK);
  streams_.push_back({std::move(ends.reading), RankOutput(std::move(setup))});
  return std::move(ends.writing);
}

void Console::resize() const noexcept {
  winsize size{};
  if (master_ < 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return;
  int prefix = setup_.prefix ? 4 : 0;
  if (size.ws_col > 2 * prefix) size.ws_col = static_cast<unsigned short>(size.ws_col - prefix);
  ioctl(master_, TIOCSWINSZ, &size);
}

void Console::add_to(std::vector<pollfd>& entries) const {
  bool full = out_.full() || (err_ && err_->full());
  for (const auto& stream : streams_)
    if (stream.from && !full) entries.push_back({stream.from.get(), POLLIN, 0});
  if (out_.pending()) entries.push_back({out_.fd(), POLLOUT, 0});
  if (err_ && err_->pending()) entries.push_back({err_->fd(), POLLOUT, 0});
}

void Console::handle(const std::vector<pollfd>& entries) {
  auto ready = [&](int fd, short events) {
    return std::any_of(entries.begin(), entries.end(),
                       [&](const pollfd& entry) { return entry.fd == fd && (entry.events & events) && entry.revents; });
  };
  for (auto& stream : streams_)
    if (stream.from && ready(stream.from.get(), POLLIN)) read(stream);
  if (out_.pending() && ready(out_.fd(), POLLOUT)) out_.flush();
  if (err_ && err_->pending() && ready(err_->fd(), POLLOUT)) err_->flush();
}

void Console::read(Stream& stream) {
  char bytes[1 << 16];
  ssize_t size = ::read(stream.from.get(), bytes, sizeof bytes);
  if (size > 0) return stream.output.add({bytes, static_cast<size_t>(size)});
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // End of the stream; a pseudoterminal returns EIO once nobody has it open.
  if (stream.from.get() == master_) master_ = -1;
  stream.from.close();
  stream.output.finish();
}

void Console::read_all() {
  for (auto& stream : streams_) {
    if (!stream.from) continue;
    int available = 0;
    while (stream.from && ioctl(stream.from.get(), FIONREAD, &available) == 0 && available > 0) read(stream);
    if (stream.from) read(stream);
  }
}

void Console::finish() {
  for (auto& stream : streams_) {
    if (!stream.from) continue;
    stream.from.close();
    stream.output.finish();
  }
}

bool Console::reading() const noexcept {
  return std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return bool(stream.from); });
}

bool Console::writing() const noexcept { return out_.pending() || (err_ && err_->pending()); }

void Console::say(std::string_view line) { (err_ ? *err_ : out_).add_line("", line); }

}  // namespace muster::launcher
