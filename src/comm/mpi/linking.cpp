#include <charconv>
#include <string_view>
#include <utility>

#include "comm/connecting.h"
#include "comm/handshake.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_collectives.h"
#include "comm/mpi/mpi_transport.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/detail/mpi_ranks.h"

namespace muster::comm {
namespace {

// What mpi_backend() returns is shown to users where options contradict each other.
constexpr std::string_view kMpi = "mpi", kMpiCollectives = "mpi_collectives", kOver = " over the communicator ",
                           kOfTheProgram = " of the program";

void check_place(const mpi::DuplicatedComm& comm, bool whole, int rank, int size) {
  if (comm.rank() == rank && comm.size() == size) return;
  throw ConfigError(
      "MU569",
      formatted("for MPI this process is rank {} of {}{}, but the job has it as rank {} of {}. Start all ranks "
                "by mpirun, or by srun --mpi=pmix, and by nothing else; to use some of the ranks of MPI, give "
                "their communicator (muster/comm/mpi.h)",
                comm.rank(), comm.size(), whole ? "" : " of the program's communicator", rank, size));
}

std::string note_on(const MpiSetup& setup, mpi::ThreadLevel level) {
  std::string note;
  if (setup.own_collectives)
    note =
        "MPI's own broadcast, all_gather and sums of float32, float64, int32 and int64, which are not in rank order; "
        "other dtypes and reductions, and parts of the ranks, by Muster's";
  if (level == mpi::ThreadLevel::multiple) return note;
  if (!note.empty()) note += "; ";
  return note + (level == mpi::ThreadLevel::serialized
                     ? "one call of MPI at a time: MPI_THREAD_SERIALIZED"
                     : "operations run in the caller's thread: MPI was initialised without MPI_THREAD_MULTIPLE");
}

}  // namespace

std::optional<MpiSetup> mpi_setup_of(const std::string& backend) {
  MpiSetup setup;
  std::string_view rest = backend;
  if (!rest.starts_with(kMpi)) return std::nullopt;
  setup.own_collectives = rest.starts_with(kMpiCollectives);
  rest.remove_prefix(setup.own_collectives ? kMpiCollectives.size() : kMpi.size());
  if (rest.empty()) return setup;
  int handle = 0;
  if (!rest.starts_with(kOver)) return std::nullopt;
  rest.remove_prefix(kOver.size());
  const auto [last, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), handle);
  if (failed != std::errc() || std::string_view(last, rest.data() + rest.size()) != kOfTheProgram) return std::nullopt;
  setup.communicator = handle;
  return setup;
}

std::string backend_over_mpi(int communicator, const std::string& backend) {
  auto name = formatted("{}{}{}{}", backend, kOver, communicator, kOfTheProgram);
  if (mpi_setup_of(name)) return name;
  throw ConfigError("MU059", formatted("the backend over a communicator of MPI is {} or {}, not '{}'", kMpi,
                                       kMpiCollectives, backend));
}

MpiLink connect_by_mpi(const MpiSetup& setup, const std::string& name, int rank, int size) {
  auto& library = mpi::Library::of_process();
  mpi::Calls& calls = library.calls();
  calls.set_finalize_timeout(setup.timeout);
  const auto deadline = std::chrono::steady_clock::now() + setup.connect_timeout;
  auto comm = library.connect(setup.communicator, deadline);
  check_place(*comm, !setup.communicator, rank, size);
  // That of all ranks is shared by the groups of messages, and collectives of two groups must not meet.
  if (setup.own_collectives && !setup.communicator) comm = library.duplicate(comm->communicator(), deadline);
  auto transport = make_mpi_transport(comm, name, setup.connect_timeout);
  connect_or_throw("MPI", name, rank, [&] { shake_hands(*transport, setup.secret, name, setup.connect_timeout); });
  MpiLink link;
  link.collectives = setup.own_collectives ? make_mpi_collectives(std::move(transport), setup.connect_timeout)
                                           : make_pairwise(std::move(transport));
  link.in_callers_thread = calls.thread_level() < mpi::ThreadLevel::serialized;
  link.note = note_on(setup, calls.thread_level());
  return link;
}

}  // namespace muster::comm
