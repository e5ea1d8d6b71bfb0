#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <type_traits>

#include <mpi.h>

#include "base/mutex.h"
#include "comm/mpi/calls.h"

namespace muster::comm::mpi {
namespace {

/// The family of MPI libraries that can run each other's programs, from the text of MPI_Get_library_version: "Open MPI"
/// with its major version, or MPICH and those that keep its binary interface.
std::string family_of(std::string_view version) {
  constexpr std::string_view open_mpi = "Open MPI v";
  if (version.starts_with(open_mpi)) return "Open MPI " + std::string(version.substr(open_mpi.size(), 1));
  for (const std::string_view name : {"MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"})
    if (version.find(name) != std::string_view::npos) return "MPICH";
  return std::string(version.substr(0, version.find_first_of(" \n")));
}

std::string family_of_header() {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION);
#elif defined(MPICH_VERSION) || defined(MPICH_NAME) || defined(I_MPI_VERSION) || defined(MVAPICH2_VERSION)
  return "MPICH";
#else
  return "";
#endif
}

/// Implements Calls::version_mismatch(). May be called before MPI_Init.
std::string difference_from_header() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length)) return "the MPI that was loaded does not tell its version";
  const std::string built = family_of_header(), loaded = family_of(text);
  if (built.empty() || built == loaded) return "";
  const std::string_view line = std::string_view(text).substr(0, std::string_view(text).find_first_of(",\n"));
  return "it was built with " + built + ", but what was loaded is " + std::string(line);
}

constexpr int kGaveUp = 70;

/// Ends the process if this object still exists after the timeout.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::milliseconds timeout) : thread_([this, timeout] { watch(timeout); }) {}
  ~Watchdog() {
    {
      base::Lock lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(std::chrono::milliseconds timeout) {
    base::Lock lock(mutex_);
    if (changed_.wait_for(lock, timeout, [this]() MUSTER_REQUIRES(mutex_) { return done_; })) return;
    std::fprintf(stderr, "muster: MPI_Finalize has waited %.0f s for other ranks; this process ends without them\n",
                 static_cast<double>(timeout.count()) / 1000);
    ::_exit(kGaveUp);
  }

  base::Mutex mutex_;
  base::Condition changed_;
  bool done_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Ends a process for which Muster initialized MPI: by MPI_Finalize, which waits for the other ranks, but only for a
/// limited time; or by MPI_Abort, which ends them, if a group has failed or the process ends with an error.
/// Thread safety: any thread.
class ProcessEnd {
 public:
  void finalize_at_exit() {
    process_ = ::getpid();
    ::on_exit(at_exit, this);
  }
  void fail() noexcept { failed_ = true; }
  /// The longest of all timeouts that are set counts.
  void set_finalize_timeout(std::chrono::milliseconds timeout) noexcept {
    auto known = timeout_.load();
    while (known < timeout && !timeout_.compare_exchange_weak(known, timeout)) continue;
  }

 private:
  static void at_exit(int status, void* self) { static_cast<const ProcessEnd*>(self)->end(status); }
  void end(int status) const {
    int finalized = 0;
    if (::getpid() != process_) return;  // a fork of the process
    MPI_Finalized(&finalized);
    if (finalized) return;
    std::fflush(nullptr);
    if (failed_ || status != 0) MPI_Abort(MPI_COMM_WORLD, status ? status : 1);
    const Watchdog watchdog(timeout_);
    MPI_Finalize();
  }

  int process_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<std::chrono::milliseconds> timeout_{};
};

// NOLINTBEGIN(bugprone-sizeof-expression): some MPIs' handles are pointers, and the size of the pointer is meant
/// Converts MPI's handle to ours, and back.
template <class T>
Handle handle_of(const T& native) {
  static_assert(sizeof(T) <= sizeof(Handle) && std::is_trivially_copyable_v<T>);
  Handle handle = 0;
  std::memcpy(&handle, &native, sizeof native);
  return handle;
}

template <class T>
T native(Handle handle) {
  T native;
  std::memcpy(&native, &handle, sizeof native);
  return native;
}

// NOLINTEND(bugprone-sizeof-expression)

MPI_Comm communicator(Handle handle) { return native<MPI_Comm>(handle); }

ThreadLevel level_of(int provided) {
  if (provided == MPI_THREAD_MULTIPLE) return ThreadLevel::multiple;
  if (provided == MPI_THREAD_SERIALIZED) return ThreadLevel::serialized;
  return provided == MPI_THREAD_FUNNELED ? ThreadLevel::funneled : ThreadLevel::single;
}

class MpiCalls final : public Calls {
 public:
  std::string version_mismatch() override { return difference_from_header(); }
  std::string initialize() override {
    int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) return "MPI_Finalize has been called";
    if (!initialized) {
      if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided)) return error_string(code);
      is_ours_ = true;
      end_.finalize_at_exit();
    }
    MPI_Query_thread(&provided);
    level_ = level_of(provided);
    return set_finalize_hook() == 0 ? "" : "MPI_COMM_SELF took no attribute";
  }
  ThreadLevel thread_level() override { return level_; }
  void on_finalize(std::function<void()> leave) override { leave_ = std::move(leave); }
  void fail() noexcept override { end_.fail(); }
  void set_finalize_timeout(std::chrono::milliseconds timeout) noexcept override { end_.set_finalize_timeout(timeout); }
  int may_call() noexcept override {
    if (finalized_) return kFinalized;
    if (level_ >= ThreadLevel::serialized) return 0;
    int main = 0;
    MPI_Is_thread_main(&main);
    return main ? 0 : kWrongThread;
  }
  std::string error_string(int code) override {
    if (code == kFinalized) return "MPI has ended in this process, or the process was forked from a rank";
    if (code == kWrongThread) return wrong_thread_text();
    if (code == kLate) return "the time-out passed first";
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (finalized_ || MPI_Error_string(code, text, &length)) return "error " + std::to_string(code);
    return text;
  }

  Handle world() override { return handle_of(MPI_COMM_WORLD); }
  Handle communicator_of(int fortran_handle) override { return handle_of(MPI_Comm_f2c(fortran_handle)); }
  bool is_null(Handle of) override { return communicator(of) == MPI_COMM_NULL; }
  int rank_and_size(Handle of, int& rank, int& size) override {
    return enter([&] {
      const int code = MPI_Comm_rank(communicator(of), &rank);
      return code ? code : MPI_Comm_size(communicator(of), &size);
    });
  }
  int tag_bound() override {
    int* bound = nullptr;
    int found = 0;
    enter([&] { return MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found); });
    return found ? *bound : 32767;  // the smallest bound that MPI allows
  }
  int duplicate(Handle of, std::chrono::steady_clock::time_point deadline, Handle& made) override {
    auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    Handle request = 0;
    int code = post(request, [&](MPI_Request& posted) { return MPI_Comm_idup(communicator(of), copy.get(), &posted); });
    std::size_t bytes = 0;
    for (bool done = false; code == 0 && !done;) {
      code = test(request, done, bytes);
      if (code == 0 && !done && std::chrono::steady_clock::now() >= deadline) code = kLate;
      if (!done) ::sched_yield();
    }
    if (code == 0) code = enter([&] { return MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN); });
    made = handle_of(*copy);
    if (code != 0) static_cast<void>(copy.release());  // MPI may still write to the copy
    return code;
  }
  void free(Handle of) noexcept override {
    auto freed = communicator(of);
    enter([&] { return MPI_Comm_free(&freed); });
  }

  int send(const void* data, std::size_t bytes, int to, int tag, Handle in, Handle& request) override {
    return post(request, [&](MPI_Request& posted) {
      return MPI_Issend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, communicator(in), &posted);
    });
  }
  int recv(void* data, std::size_t bytes, int from, int tag, Handle in, Handle& request) override {
    return post(request, [&](MPI_Request& posted) {
      return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, communicator(in), &posted);
    });
  }
  int test(Handle& request, bool& done, std::size_t& bytes) override {
    auto tested = native<MPI_Request>(request);
    MPI_Status status;
    int flag = 0, count = 0;
    const int code = enter([&] {
      const int failed = MPI_Test(&tested, &flag, &status);
      if (!failed && flag) MPI_Get_count(&status, MPI_BYTE, &count);
      return failed;
    });
    request = handle_of(tested);
    done = flag != 0;
    bytes = count > 0 ? static_cast<std::size_t>(count) : 0;
    return code;
  }
  bool cancel(Handle& request) noexcept override {
    auto cancelled = native<MPI_Request>(request);
    int flag = 0;
    const int code = enter([&] {
      const int failed = MPI_Cancel(&cancelled);
      return failed ? failed : MPI_Test(&cancelled, &flag, MPI_STATUS_IGNORE);
    });
    request = handle_of(cancelled);
    return code == 0 && flag != 0;
  }
  int notify(int to, int tag, Handle in) override {
    return enter([&] {
      MPI_Request sent = MPI_REQUEST_NULL;
      const int code = MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, communicator(in), &sent);
      return code ? code : MPI_Request_free(&sent);
    });
  }
  int probe(int from, int tag, Handle in, bool& there) override {
    int flag = 0;
    const int code = enter([&] { return MPI_Iprobe(from, tag, communicator(in), &flag, MPI_STATUS_IGNORE); });
    there = flag != 0;
    return code;
  }

 private:
  /// Makes one call, if this thread may make it.
  template <class F>
  int enter(F call) noexcept {
    inside_.fetch_add(1);
    int code = may_call();
    if (code == 0 && level_ == ThreadLevel::serialized) {
      base::Lock lock(one_at_a_time_);
      code = call();
    } else if (code == 0) {
      code = call();
    }
    inside_.fetch_sub(1);
    return code;
  }

  template <class F>
  int post(Handle& request, F start) {
    MPI_Request posted = MPI_REQUEST_NULL;
    const int code = enter([&] { return start(posted); });
    request = handle_of(posted);
    return code;
  }

  std::string wrong_thread_text() const {
    const std::string level = level_ == ThreadLevel::single ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED";
    const std::string found = is_ours_ ? "Muster asked MPI for MPI_THREAD_MULTIPLE and got " + level
                                       : "the program has initialised MPI (MPI_Init, MPI_Init_thread) with " + level;
    const std::string remedy = is_ours_ ? "Take an MPI that was built with support for threads"
                                        : "Let the program call MPI_Init_thread with MPI_THREAD_MULTIPLE in place of "
                                          "MPI_Init, or leave the initialisation to Muster";
    return found +
           ", so only the thread that initialised it may call MPI, and this is another one; an asynchronous save, or a "
           "thread of the program, needs MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE. " +
           remedy + "; or save without .asynchronous, and communicate from that thread alone";
  }
  /// Uses that MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
  int set_finalize_hook() {
    int key = MPI_KEYVAL_INVALID;
    if (const int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &key, nullptr)) return code;
    static MpiCalls* ours = this;
    if (::pthread_atfork(nullptr, nullptr, [] { ours->finalized_ = true; })) return MPI_ERR_OTHER;
    return MPI_Comm_set_attr(MPI_COMM_SELF, key, this);
  }
  static int on_finalize(MPI_Comm, int, void* self, void*) { return static_cast<MpiCalls*>(self)->finalizing(); }
  int finalizing() {
    if (leave_) leave_();
    finalized_ = true;
    while (inside_ > 0) ::sched_yield();
    return MPI_SUCCESS;
  }

  std::function<void()> leave_;
  ProcessEnd end_;
  ThreadLevel level_ = ThreadLevel::multiple;
  bool is_ours_ = false;  ///< whether Muster initialized MPI
  base::Mutex one_at_a_time_;
  std::atomic<int> inside_ = 0;
  std::atomic<bool> finalized_ = false;
};

}  // namespace
}  // namespace muster::comm::mpi

extern "C" __attribute__((visibility("default"))) muster::comm::mpi::Calls* muster_mpi_calls_4() {
  // Never destroyed, because it is used until the process ends.
  static auto* calls = new muster::comm::mpi::MpiCalls;
  return calls;
}
