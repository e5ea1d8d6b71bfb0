#include "comm/mpi/library.h"

#include <dlfcn.h>

#include "comm/object_file.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm::mpi {
namespace {

/// Communicators that this rank has left. MPI may give a new communicator the number of one that was freed. So a
/// communicator is freed only when the notices of all its ranks have come, because then nobody sends in it any more.
class LeftCommunicators {
 public:
  struct Left {
    Left(Calls& calls, Handle communicator, int own, int size) : calls(&calls), communicator(communicator) {
      for (int rank = 0; rank < size; ++rank)
        if (rank != own) missing.push_back(rank);
    }
    Calls* calls;
    Handle communicator;
    std::vector<int> missing;
  };

  void add(Left left) {
    base::Lock lock(mutex_);
    all_.push_back(std::move(left));
    std::erase_if(all_, [](Left& one) {
      std::erase_if(one.missing, [&](int rank) { return takes_notice(one, rank); });
      if (one.missing.empty()) one.calls->free(one.communicator);
      return one.missing.empty();
    });
  }

 private:
  static bool takes_notice(const Left& from, int rank) {
    bool there = false, done = false;
    std::size_t bytes = 0;
    Handle request = 0;
    if (from.calls->probe(rank, DuplicatedComm::notices, from.communicator, there) != 0 || !there) return false;
    if (from.calls->recv(nullptr, 0, rank, DuplicatedComm::notices, from.communicator, request) != 0) return false;
    while (!done)
      if (from.calls->test(request, done, bytes) != 0) return false;
    return true;
  }

  base::Mutex mutex_;
  std::vector<Left> all_ MUSTER_GUARDED_BY(mutex_);
};

Calls* open_calls() {
  const auto opened = open_own_object(kLibrary);  // MPI's plugins need its symbols, too
  if (!opened.handle)
    throw ConfigError("MU567",
                      formatted("the backend mpi needs {}, which cannot be opened: {}. It is built with Muster where "
                                "CMake finds MPI (Debian: libopenmpi-dev) and installed beside its libraries; "
                                "LD_LIBRARY_PATH may name another folder",
                                kLibrary, opened.problem));
  const auto entry = reinterpret_cast<Entry>(::dlsym(opened.handle, kEntry));
  if (!entry)
    throw ConfigError("MU567", formatted("{} is of another version of Muster: it has no function {}; install the one "
                                         "that was built with this library",
                                         kLibrary, kEntry));
  Calls* calls = entry();
  if (const auto difference = calls->version_mismatch(); !difference.empty())
    throw ConfigError("MU568", formatted("{} cannot use this MPI: {}. Start the program with the MPI that Muster was "
                                         "built with, or build Muster with this one",
                                         kLibrary, difference));
  return calls;
}

}  // namespace

DuplicatedComm::DuplicatedComm(Calls& calls, Handle duplicate) : calls_(calls), communicator_(duplicate) {
  if (const int code = calls.rank_and_size(duplicate, rank_, size_)) throw CommError("MU557", calls.error_string(code));
  tag_bound_ = calls.tag_bound();
}

DuplicatedComm::~DuplicatedComm() {
  // After a failure, messages may still be in flight in the communicator.
  if (failed_) return;
  notify_all();
  // MPI may end after the program's static variables were destroyed.
  static auto* const left = new LeftCommunicators;  // NOLINT(bugprone-unhandled-exception-at-new)
  left->add({calls_, communicator_, rank_, size_});
}

int DuplicatedComm::first_tag(int64_t number, int first_rank) const {
  const int64_t tag = (number * size_ + first_rank) * kinds;
  if (tag + kinds - 1 > tag_bound_)
    throw CommError("MU557", formatted("MPI has {} tags, which are used up by {} groups of ranks; keep groups instead "
                                       "of making them again",
                                       tag_bound_, number));
  return static_cast<int>(tag);
}

void DuplicatedComm::keep(std::shared_ptr<const void> memory) {
  struct Kept {
    base::Mutex mutex;
    std::vector<std::shared_ptr<const void>> memory MUSTER_GUARDED_BY(mutex);
  };
  static auto* const kept = new Kept;  // until the process ends
  failed_ = true;
  base::Lock lock(kept->mutex);
  kept->memory.push_back(std::move(memory));
}

void DuplicatedComm::leave() {
  base::Lock lock(mutex_);
  for (auto* member : members_) member->end("MPI has ended on this rank");
  notify_all();
}

Library& Library::of_process() {
  static auto* library = new Library;  // MPI may end after the program's static variables were destroyed
  return *library;
}

Calls& Library::calls() {
  base::Lock lock(mutex_);
  if (calls_) return *calls_;
  Calls* calls = open_calls();
  calls->on_finalize([this] { leave(); });
  if (const auto failure = calls->initialize(); !failure.empty())
    throw CommError("MU557", formatted("MPI could not be initialised: {}", failure));
  calls_ = calls;
  return *calls_;
}

std::shared_ptr<DuplicatedComm> Library::duplicate(Handle communicator,
                                                   std::chrono::steady_clock::time_point deadline) {
  Calls& mpi = calls();
  Handle made = 0;
  if (const int code = mpi.duplicate(communicator, deadline, made)) {
    mpi.fail();
    if (code < 0 && code != kLate) throw CommError("MU557", mpi.error_string(code));
    throw CommError("MU058", formatted("the ranks could not duplicate a communicator of MPI: {}. Do all of its ranks "
                                       "connect?",
                                       mpi.error_string(code)));
  }
  auto comm = std::make_shared<DuplicatedComm>(mpi, made);
  base::Lock lock(comms_mutex_);
  std::erase_if(comms_, [](const auto& other) { return other.expired(); });
  comms_.push_back(comm);
  return comm;
}

std::shared_ptr<DuplicatedComm> Library::connect(const std::optional<int>& communicator,
                                                 std::chrono::steady_clock::time_point deadline) {
  Calls& mpi = calls();
  if (communicator) {
    const Handle ranks = mpi.communicator_of(*communicator);
    if (mpi.is_null(ranks))
      throw CommError("MU557",
                      "the communicator is MPI_COMM_NULL: this process is none of its ranks, and connects nothing");
    return duplicate(ranks, deadline);
  }
  base::Lock lock(whole_mutex_);
  if (!whole_) whole_ = duplicate(mpi.world(), deadline);
  return whole_;
}

void Library::leave() {
  std::vector<std::weak_ptr<DuplicatedComm>> comms;
  {
    base::Lock lock(comms_mutex_);
    comms = comms_;
  }
  for (const auto& comm : comms)
    if (auto alive = comm.lock()) alive->leave();
}

}  // namespace muster::comm::mpi
