#include <charconv>
#include <string_view>
#include <utility>

#include "comm/handshake.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_transport.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/detail/mpi_ranks.h"

namespace muster::comm {
namespace {

// Parts of the names that mpi_backend() returns. Users see these names when options contradict each other.
constexpr std::string_view kMpi = "mpi", kOver = " over the communicator ", kOfTheProgram = " of the program";

void check_place(const mpi::DuplicatedComm& comm, bool whole, int rank, int size) {
  if (comm.rank() == rank && comm.size() == size) return;
  throw ConfigError(
      "MU569",
      formatted("for MPI this process is rank {} of {}{}, but the job has it as rank {} of {}. Start all ranks "
                "by mpirun, or by srun --mpi=pmix, and by nothing else; to use some of the ranks of MPI, give "
                "their communicator (muster/comm/mpi.h)",
                comm.rank(), comm.size(), whole ? "" : " of the program's communicator", rank, size));
}

std::string note_on(mpi::ThreadLevel level) {
  if (level == mpi::ThreadLevel::multiple) return "";
  return level == mpi::ThreadLevel::serialized
             ? "one call of MPI at a time: MPI_THREAD_SERIALIZED"
             : "operations run in the caller's thread: MPI was initialised without MPI_THREAD_MULTIPLE";
}

}  // namespace

std::optional<MpiSetup> mpi_setup_of(const std::string& backend) {
  MpiSetup setup;
  std::string_view rest = backend;
  if (!rest.starts_with(kMpi)) return std::nullopt;
  rest.remove_prefix(kMpi.size());
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
  throw ConfigError("MU059", formatted("the backend over a communicator of MPI is '{}', not '{}'", kMpi, backend));
}

MpiLink connect_by_mpi(const MpiSetup& setup, const std::string& name, int rank, int size) {
  auto& library = mpi::Library::of_process();
  mpi::Calls& calls = library.calls();
  calls.set_finalize_timeout(setup.timeout);
  const auto deadline = std::chrono::steady_clock::now() + setup.connect_timeout;
  const auto comm = library.connect(setup.communicator, deadline);
  check_place(*comm, !setup.communicator, rank, size);
  auto transport = make_mpi_transport(comm, name, setup.connect_timeout);
  connect_or_throw("MPI", name, rank, [&] { shake_hands(*transport, setup.secret, name, setup.connect_timeout); });
  MpiLink link;
  link.collectives = make_pairwise(std::move(transport));
  link.in_callers_thread = calls.thread_level() < mpi::ThreadLevel::serialized;
  link.note = note_on(calls.thread_level());
  return link;
}

}  // namespace muster::comm
