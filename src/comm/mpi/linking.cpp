#include <charconv>

#include "comm/handshake.h"
#include "comm/mpi/connecting.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_transport.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

constexpr std::string_view kMpi = "mpi";

void check_place(const mpi::World& world, bool whole, int rank, int size) {
  if (world.rank() == rank && world.size() == size) return;
  throw ConfigError(
      "MU569",
      formatted("for MPI this process is rank {} of {}{}, but the job has it as rank {} of {}. Start all ranks "
                "by mpirun, or by srun --mpi=pmix, and by nothing else; to use some of the ranks of MPI, give "
                "their communicator (muster/comm/mpi.h)",
                world.rank(), world.size(), whole ? "" : " of the program's communicator", rank, size));
}

std::string note_on(mpi::ThreadLevel level) {
  if (level == mpi::ThreadLevel::multiple) return "";
  if (level == mpi::ThreadLevel::serialized) return "one call of MPI at a time: MPI_THREAD_SERIALIZED";
  return "operations run in the caller's thread: MPI was initialised without MPI_THREAD_MULTIPLE";
}

}  // namespace

std::optional<MpiSetup> mpi_setup_of(const std::string& backend) {
  if (backend == kMpi) return MpiSetup{};
  if (!backend.starts_with("mpi:")) return std::nullopt;
  int handle = 0;
  const char *begin = backend.data() + kMpi.size() + 1, *end = backend.data() + backend.size();
  const auto [last, failed] = std::from_chars(begin, end, handle);
  if (failed != std::errc() || last != end) return std::nullopt;
  MpiSetup setup;
  setup.communicator = handle;
  return setup;
}

MpiLink make_mpi_transport(const MpiSetup& setup, const std::string& name, int rank, int size) {
  auto& library = mpi::Library::of_process();
  mpi::Calls& calls = library.calls();
  calls.set_patience(setup.timeout);
  const auto world = library.world(setup.communicator, std::chrono::steady_clock::now() + setup.connect_timeout);
  check_place(*world, !setup.communicator, rank, size);
  MpiLink link;
  link.transport = make_mpi_transport(world, name, setup.connect_timeout);
  connecting_by_mpi(name, rank, [&] { shake_hands(*link.transport, setup.secret, name, setup.connect_timeout); });
  link.in_callers_thread = calls.thread_level() < mpi::ThreadLevel::serialized;
  link.note = note_on(calls.thread_level());
  return link;
}

}  // namespace muster::comm
