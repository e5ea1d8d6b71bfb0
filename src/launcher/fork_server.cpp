#include "launcher/fork_server.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/deadline.h"
#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "cluster/report.h"
#include "fork_protocol.h"

namespace muster::launcher {
namespace {

/// Variables that differ between the ranks of a node.
constexpr std::array kOfRank{cluster::kRank,     cluster::kLocalRank,   cluster::kStoreFd,
                             cluster::kReportFd, cluster::kDeviceIndex, cluster::kVisibleDevices};
/// Variables that differ between the rounds of a job. No library reads these, or those of a rank, before main().
constexpr std::array kOfRound{
    cluster::kJob,          cluster::kJobStart,       cluster::kWorldSize,        cluster::kNodeRank,
    cluster::kNodes,        cluster::kLocalWorldSize, cluster::kMainAddress,      cluster::kMainPort,
    cluster::kRestartCount, cluster::kSecret,         cluster::kTorchRestartCount};

bool contains(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Calls `visit(name, text)` for each variable of `rank` that is missing or different in `server`, and with nullptr as
/// the text for each that only `server` has.
void visit_differences(const Environment& server, const Environment& rank, const auto& visit) {
  for (const auto& [name, text] : rank.variables()) {
    const auto found = server.variables().find(name);
    if (found == server.variables().end() || found->second != text) visit(name, &text);
  }
  for (const auto& [name, text] : server.variables())
    if (!rank.variables().contains(name)) visit(name, static_cast<const std::string*>(nullptr));
}

}  // namespace

Environment fork_server_environment(const Environment& rank) {
  Environment result = rank;
  for (auto name : kOfRank) result.unset(name);
  return result;
}

std::optional<std::string> fixed_difference(const Environment& server, const Environment& rank) {
  std::optional<std::string> result;
  visit_differences(server, rank, [&](const std::string& name, const std::string*) {
    if (!contains(kOfRank, name) && !contains(kOfRound, name)) result = name;
  });
  return result;
}

std::string variable_words(const Environment& server, const Environment& rank,
                           const std::vector<std::string>& descriptor_variables) {
  std::string words;
  const auto add = [&](char kind, const std::string& word) { words += kind + word + '\0'; };
  visit_differences(server, rank, [&](const std::string& name, const std::string* text) {
    if (contains(descriptor_variables, name)) return;
    if (text) add(kSetVariable, name + "=" + *text);
    else add(kUnsetVariable, name);
  });
  for (const auto& name : descriptor_variables) add(kDescriptorVariable, name);
  return words;
}

namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);

constexpr std::size_t kMostNotes = std::size_t{1} << 16;  // limit in bytes; a linker writes a few hundred
constexpr std::size_t kMostSegments = 1024;               // limit on program headers in a file

bool read_at(int file, std::size_t offset, void* to, std::size_t size) {
  return pread(file, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

bool is_program(const Header& header) {
  constexpr auto kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == kClass &&
         (header.e_type == ET_EXEC || header.e_type == ET_DYN) && header.e_phentsize == sizeof(Segment) &&
         header.e_phnum <= kMostSegments;
}

}  // namespace

bool can_be_fork_server(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  Header header;
  if (!file || fstat(file.get(), &status) != 0 || (status.st_mode & (S_ISUID | S_ISGID)) ||
      !read_at(file.get(), 0, &header, sizeof header) || !is_program(header))
    return false;
  std::vector<Segment> segments(header.e_phnum);
  if (!read_at(file.get(), header.e_phoff, segments.data(), segments.size() * sizeof(Segment))) return false;
  const ForkNote note;
  const std::string_view wanted(reinterpret_cast<const char*>(&note), sizeof note);
  return std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    std::string notes(segment.p_type == PT_NOTE && segment.p_filesz <= kMostNotes ? segment.p_filesz : 0, '\0');
    return read_at(file.get(), segment.p_offset, notes.data(), notes.size()) && notes.find(wanted) != std::string::npos;
  });
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLoadTime{120000};           // long, since libraries may come from a slow file server
constexpr milliseconds kForkTime{30000};            // time to fork all ranks
constexpr milliseconds kForkTimeAfterSignal{2000};  // forking takes milliseconds unless the server is stuck

/// Makes this process adopt orphaned descendants during the guard's lifetime.
class SubreaperGuard {
 public:
  SubreaperGuard() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~SubreaperGuard() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  SubreaperGuard(const SubreaperGuard&) = delete;
  SubreaperGuard& operator=(const SubreaperGuard&) = delete;

 private:
  int before_ = 0;
};

/// The numbers of the descriptors that programs inherit from this process, each preceded by a space.
std::string inherited_descriptors() {
  std::string numbers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const auto number = entry.path().filename().string();
    const int flags = fcntl(std::stoi(number), F_GETFD);
    if (flags >= 0 && !(flags & FD_CLOEXEC)) numbers += " " + number;
  }
  return numbers;
}

/// Returns false and sets errno if the message cannot be sent.
bool send_message(int socket, const std::string& text, const std::vector<int>& descriptors) {
  errno = EMSGSIZE;
  if (text.size() > kForkBytes || descriptors.size() > kForkDescriptors) return false;
  alignas(cmsghdr) char control[CMSG_SPACE(kForkDescriptors * sizeof(int))] = {};
  const auto bytes = descriptors.size() * sizeof(int);
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(bytes);
    auto* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), bytes);
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

ForkReply no_reply(const std::string& reason) {
  ForkReply reply;
  reason.copy(reply.reason, sizeof reply.reason - 1);
  return reply;
}

/// Reaps ranks that were not told to start. They end by themselves unless they are stopped, so those are killed.
void reap(const std::vector<pid_t>& ranks) {
  for (pid_t rank : ranks) {
    siginfo_t ended;
    const auto id = static_cast<id_t>(rank);
    if (waitid(P_PID, id, &ended, WEXITED | WNOHANG | WNOWAIT) == 0) kill(rank, SIGKILL);
    while (waitpid(rank, nullptr, 0) < 0 && errno == EINTR) {}
  }
}

}  // namespace

ForkServer::ForkServer(const Program& program, int interrupt)
    : interrupt_(interrupt), program_(program), usable_(can_be_fork_server(program.path)) {
  if (!usable_) log::debug("ranks are spawned: ", program.path, " does not link Muster, or another version");
}

std::vector<Child> ForkServer::start(const std::vector<RankStart>& ranks, Console& console, const OnWait& on_wait) {
  on_wait_ = on_wait;
  if (usable_ && !server_) load(ranks.front(), console);
  for (const auto& rank : ranks)
    if (const auto name = usable_ ? fixed_difference(environment_, rank.environment) : std::nullopt)
      refuse("its libraries may have read " + *name + " with another value");
  return usable_ ? fork_ranks(ranks) : std::vector<Child>();
}

void ForkServer::load(const RankStart& first, Console& console) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return refuse_by_errno("no socket");
  socket_ = Descriptor(ends[0]);
  Descriptor its_end(ends[1]);
  const auto token = random_hex(16);
  if (!send_message(socket_.get(), token + inherited_descriptors(), {})) return refuse_by_errno("no first message");
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  environment_ = fork_server_environment(first.environment);
  RankStart server = first;
  server.environment = environment_;
  server.environment.set(cluster::kForkServer, log::str(its_end.get(), ":", token));
  server.input_fd = nothing.get();
  server.keep_fd = its_end.get();
  server.reports = false;
  server_.emplace(server, program_);
  its_end.close();  // otherwise the end of the server would not end the connection
  const auto reply = receive_reply(kLoadTime, milliseconds(0), &console);
  if (reply.kind != ForkReply::Kind::ready) return refuse(reply.reason);
  log::debug("ranks are forked from process ", server_->pid(), ", which has loaded ", program_.path);
}

std::vector<Child> ForkServer::fork_ranks(const std::vector<RankStart>& ranks) {
  const SubreaperGuard adoption;
  std::vector<cluster::Report> reports;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    cluster::promise_to_print(reports.emplace_back(cluster::Report::make()));
  auto start = make_pipe();
  if (!start.reading) return refuse_by_errno("no pipe"), std::vector<Child>();
  const auto processes = request(ranks, reports, start.reading.get());
  std::vector<Child> children;
  if (!usable_) {
    start.writing.close();
    reap(processes);
    return children;
  }
  children.reserve(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) children.emplace_back(ranks[i].rank, processes[i], reports[i]);
  const std::string one_each(ranks.size(), 's');
  if (write(start.writing.get(), one_each.data(), one_each.size()) != static_cast<ssize_t>(one_each.size()))
    refuse_by_errno("ranks cannot be told to start"), children.clear();
  return children;
}

std::vector<pid_t> ForkServer::request(const std::vector<RankStart>& ranks, const std::vector<cluster::Report>& reports,
                                       int start_fd) {
  std::vector<pid_t> processes;
  const auto send = [&](const std::string& text, const std::vector<int>& descriptors) {
    if (!send_message(socket_.get(), text, descriptors)) refuse_by_errno("its fork server takes no message");
  };
  const auto reply = [&](ForkReply::Kind wanted) {
    const auto received = receive_reply(kForkTime, kForkTimeAfterSignal);
    if (received.kind != wanted)
      refuse(received.number ? std::generic_category().message(received.number) : received.reason);
    return received.number;
  };
  log::debug("process ", server_->pid(), " is asked for ", ranks.size(), " ranks");
  send(std::to_string(ranks.size()), {start_fd});
  for (std::size_t i = 0; usable_ && i < ranks.size(); ++i) {
    const auto& rank = ranks[i];
    const auto or_own = [](int descriptor, int own) { return descriptor < 0 ? own : descriptor; };
    std::vector<int> descriptors{or_own(rank.input_fd, STDIN_FILENO), or_own(rank.output_fd, STDOUT_FILENO),
                                 or_own(rank.error_fd, STDERR_FILENO)};
    std::vector<std::string> names;  // variables of the descriptors after the streams
    for (const auto& [name, descriptor] :
         {std::pair(cluster::kStoreFd, rank.keep_fd), std::pair(cluster::kReportFd, reports[i].descriptor())}) {
      if (descriptor < 0) continue;
      descriptors.push_back(descriptor);
      names.emplace_back(name);
    }
    send(variable_words(environment_, rank.environment, names), descriptors);
    if (const pid_t process = usable_ ? reply(ForkReply::Kind::forked) : 0; usable_) processes.push_back(process);
  }
  if (usable_) reply(ForkReply::Kind::adopted);
  return processes;
}

ForkReply ForkServer::receive_reply(milliseconds time, milliseconds grace, Console* console) {
  auto end = Clock::now() + time;
  auto late = log::str("it did not answer within ", time.count() / 1000, " s");
  for (int interrupt = interrupt_;;) {
    std::vector<pollfd> entries{{socket_.get(), POLLIN, 0}, {interrupt, POLLIN, 0}};
    if (console) console->add_to(entries);
    const auto until = on_wait_ ? std::min(end, Clock::now() + on_wait_()) : end;
    if (Clock::now() >= end) return no_reply(late);
    if (poll(entries.data(), entries.size(), milliseconds_until(until)) <= 0) continue;
    ForkReply reply;
    if (entries[0].revents)
      return recv(socket_.get(), &reply, sizeof reply, 0) == sizeof reply ? reply : no_reply("it has ended");
    if (entries[1].revents) {  // not read here: the signal is for the code that runs the ranks
      interrupt = -1;
      end = std::min(end, Clock::now() + grace);
      late = "a signal came before it had answered";
    }
    if (console) console->handle(entries);
  }
}

void ForkServer::refuse(const std::string& reason) {
  log::debug("ranks are spawned, not forked from a process that has loaded ", program_.path, ": ", reason);
  usable_ = false;
  socket_.close();
  server_.reset();
}

void ForkServer::refuse_by_errno(const std::string& what) {
  refuse(log::str(what, ": ", std::generic_category().message(errno)));
}

}  // namespace muster::launcher
