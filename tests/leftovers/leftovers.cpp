// Part of every test program: it fails if its tests leave a thread, a process, an open file, a shared memory segment or
// something in the folder for temporary files behind.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace muster::leftovers {
namespace {

/// What stays as long as the process does, by the name of its thread, and why.
struct Known {
  std::string_view thread;
  std::string_view reason;
};
constexpr Known kKnown[] = {
    {"pt_autograd_", "LibTorch's autograd keeps a thread for each device"},
};

/// By something that no other of its kind has: what a message says of it.
using Found = std::map<std::string, std::string>;

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  auto* opened = ::opendir(folder.c_str());
  if (!opened) return names;
  const auto own = std::to_string(::dirfd(opened));  // listing the open files opens one
  while (const auto* entry = ::readdir(opened))
    if (entry->d_name[0] != '.' && (!folder.ends_with("/fd") || entry->d_name != own))
      names.emplace_back(entry->d_name);
  ::closedir(opened);
  return names;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const std::string& path) {
  char target[4096];
  const auto size = ::readlink(path.c_str(), target, sizeof target);
  return size < 0 ? std::string() : std::string(target, static_cast<size_t>(size));
}

/// Field `index` of a stat file in /proc, counted from the state, which is 0; the name before it may hold spaces.
std::string stat_field(const std::string& path, int index) {
  const auto line = first_line(path);
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  std::string field;
  for (int i = 0; i <= index; ++i) rest >> field;
  return field;
}
constexpr int kParent = 1, kStart = 19;

bool is_number(const std::string& name) { return name.find_first_not_of("0123456789") == std::string::npos; }

/// The threads with which OpenMP runs loops of this one; it keeps them for the next loop. They are asked who they are.
std::set<std::string> openmp_threads() {
  struct Names {
    std::mutex mutex;
    std::set<std::string> all;
  } names;
  using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
  const auto parallel = reinterpret_cast<Parallel>(::dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  const auto tell = [](void* to) {
    auto& told = *static_cast<Names*>(to);
    const std::lock_guard lock(told.mutex);
    told.all.insert(std::to_string(::syscall(SYS_gettid)));
  };
  if (parallel) parallel(tell, &names, 2, 0);  // a smaller team than before lets the others go
  return std::move(names.all);
}

Found threads() {
  Found found;
  const auto pool = openmp_threads();
  for (const auto& id : entries("/proc/self/task")) {
    const auto path = "/proc/self/task/" + id, name = first_line(path + "/comm");
    const bool known = std::any_of(std::begin(kKnown), std::end(kKnown),
                                   [&](const Known& one) { return name.starts_with(one.thread); });
    if (!known && !pool.contains(id))
      found["thread " + id + " " + stat_field(path + "/stat", kStart)] = "the thread '" + name + "' (" + id + ")";
  }
  return found;
}

Found processes() {
  Found found;
  const auto own = std::to_string(::getpid());
  for (const auto& id : entries("/proc")) {
    const auto path = "/proc/" + id;
    if (is_number(id) && stat_field(path + "/stat", kParent) == own)
      found["process " + id + " " + stat_field(path + "/stat", kStart)] =
          "the process '" + first_line(path + "/comm") + "' (" + id + ")";
  }
  return found;
}

Found files() {
  Found found;
  for (const auto& id : entries("/proc/self/fd")) {
    const auto target = link_target("/proc/self/fd/" + id);
    if (!target.empty()) found["file " + id + " " + target] = "the open file " + target + " (descriptor " + id + ")";
  }
  return found;
}

Found segments() {
  Found found;
  // Folders are those of tests beside this one; Open MPI's segments are those of its launcher, which outlive a killed
  // rank for a moment.
  for (const auto& name : entries("/dev/shm"))
    if (!name.starts_with("vader_segment.") && !std::filesystem::is_directory("/dev/shm/" + name))
      found["segment " + name] = "the shared memory segment /dev/shm/" + name;
  return found;
}

/// Another process has it mapped or open, so it is not ours.
bool is_used_elsewhere(const std::string& segment) {
  const auto path = "/dev/shm/" + segment;
  for (const auto& id : entries("/proc")) {
    if (!is_number(id) || id == std::to_string(::getpid())) continue;
    std::ifstream maps("/proc/" + id + "/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.ends_with(path)) return true;
    for (const auto& file : entries("/proc/" + id + "/fd"))
      if (link_target("/proc/" + id + "/fd/" + file) == path) return true;
  }
  return false;
}

Found all() {
  Found found = threads();
  for (const auto& look : {processes, files, segments}) found.merge(look());
  return found;
}

/// The first call of CUDA opens files and starts a thread, which stay, even if no device is visible.
void start_driver() {
  const auto count_devices = reinterpret_cast<int (*)(int*)>(::dlsym(RTLD_DEFAULT, "cudaGetDeviceCount"));
  int count = 0;
  if (count_devices) count_devices(&count);
}

class Leftovers : public ::testing::Environment {
 public:
  void SetUp() override {
    start_driver();
    std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first one
    before_ = all();
  }

  void TearDown() override {
    // The system lists a thread for a moment after it was joined, so this looks more than once.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    auto left = fresh();
    while (!left.empty() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      left = fresh();
    }
    for (const auto& [key, what] : left) {
      constexpr std::string_view kSegment = "segment ";
      if (key.starts_with(kSegment) && is_used_elsewhere(key.substr(kSegment.size()))) continue;
      ADD_FAILURE() << "the tests of this program left " << what << " behind";
    }
  }

 private:
  Found fresh() const {
    auto now = all();
    std::erase_if(now, [&](const auto& entry) { return before_.contains(entry.first); });
    return now;
  }

  Found before_;
};

/// A folder for temporary files that only this program and the ranks it starts use, so that what stays in it is theirs.
class OwnTemporaryFolder : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* given = std::getenv("TMPDIR");
    const char* parents = std::getenv(kVariable);
    if (given && parents && std::string_view(given) == parents) return;  // a rank
    path_ = std::string(given ? given : "/tmp") + "/mt-XXXXXX";
    ASSERT_NE(::mkdtemp(path_.data()), nullptr) << path_;
    ::setenv(kVariable, path_.c_str(), 1);
    ::setenv("TMPDIR", path_.c_str(), 1);
  }

  void TearDown() override {
    if (path_.empty()) return;
    for (const auto& name : entries(path_))
      if (!is_meeting_place(name) && !name.starts_with("tsan.rodata"))  // of a process killed at its start
        ADD_FAILURE() << "the tests of this program left " << path_ << "/" << name << " behind";
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  /// The user's own folder, in which ranks of one node meet, stays; nothing may stay in it.
  bool is_meeting_place(const std::string& name) const {
    return name.starts_with("muster-" + std::to_string(::getuid())) && entries(path_ + "/" + name).empty();
  }

  static constexpr const char* kVariable = "MUSTER_TEST_TMPDIR";
  std::string path_;
};

[[maybe_unused]] const auto* const kFolder = ::testing::AddGlobalTestEnvironment(new OwnTemporaryFolder);
[[maybe_unused]] const auto* const kRegistered = ::testing::AddGlobalTestEnvironment(new Leftovers);

}  // namespace
}  // namespace muster::leftovers
