#include "comm/mpi/library.h"

#include <dlfcn.h>

#include <string>

#include "comm/object_file.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm::mpi {
namespace {

Calls* open_calls() {
  const auto opened = open_own_object(kLibrary, SymbolsFor::all);  // MPI's plugins need its symbols, too
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
