#include <unistd.h>

#include "base/text.h"
#include "cluster/listening_socket.h"
#include "comm/group.h"
#include "comm/handshake.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_transport.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/detail/mpi_ranks.h"
#include "muster/comm/rendezvous.h"

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
  const std::string begin = formatted("{}{}", kMpi, kOver);
  if (backend == kMpi) return MpiSetup();
  if (!backend.starts_with(begin) || !backend.ends_with(kOfTheProgram)) return std::nullopt;
  const auto handle =
      std::string_view(backend).substr(begin.size(), backend.size() - begin.size() - kOfTheProgram.size());
  const auto communicator = parse_number<int>(handle);
  if (!communicator) return std::nullopt;
  return MpiSetup{.communicator = communicator};
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
  const auto level = calls.thread_level();
  return {make_pairwise(std::move(transport)), level < mpi::ThreadLevel::serialized, note_on(level)};
}

namespace {

std::string host_name() {
  if (auto named = Environment::of_process().find("MUSTER_HOST")) return *named;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The position of this rank among ranks on these hosts.
ClusterEnvironment placed(int rank, const std::vector<std::string>& hosts) {
  ClusterEnvironment cluster;
  cluster.rank = rank;
  cluster.world_size = static_cast<int>(hosts.size());
  const auto& own = hosts.at(static_cast<std::size_t>(rank));
  cluster.local_world_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
  cluster.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, own));
  std::vector<std::string> nodes;
  for (const auto& host : hosts)
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
  cluster.nodes = static_cast<int>(nodes.size());
  cluster.node_rank = static_cast<int>(std::find(nodes.begin(), nodes.end(), own) - nodes.begin());
  return cluster;
}

/// Chooses where a store will be, for other parts of the library that need one: rank 0 tells all ranks.
void place_store(ClusterEnvironment& cluster, const std::string& first_host, const Communicator& ranks) {
  if (cluster.nodes == 1) {
    cluster.rendezvous = RendezvousKind::file;
    cluster.store_path = ranks.broadcast_bytes("mpi-" + random_hex(16) + ".store");
    return;
  }
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = first_host;
  cluster.store_prefix = "muster/0";
  cluster::ListeningSocket socket;
  if (cluster.rank == 0) socket = cluster::ListeningSocket(0, cluster::where_to_listen(first_host));
  cluster.main_port = std::stoi(ranks.broadcast_bytes(std::to_string(socket.port())));
  cluster.store_listen_fd = socket.release();
}

ClusterEnvironment read_ranks(int communicator, std::chrono::milliseconds timeout) {
  const auto comm = mpi::Library::of_process().connect(communicator, TimePoint::clock::now() + timeout);
  if (comm->size() == 1) return {};
  const GroupIdentity identity{.name = "ranks of MPI", .timeout = timeout};
  const int rank = comm->rank();
  auto transport = make_mpi_transport(comm, identity.name, timeout);
  const Communicator ranks(std::make_shared<Group>(identity, make_pairwise(std::move(transport))));
  const auto hosts = ranks.all_gather_bytes(host_name());
  auto cluster = placed(rank, hosts);
  place_store(cluster, hosts.front(), ranks);
  return cluster;
}

}  // namespace

ClusterReader ranks_over_mpi(int communicator, std::chrono::milliseconds timeout) {
  auto known = std::make_shared<std::optional<ClusterEnvironment>>();
  return [known, communicator, timeout](const Environment&) {
    if (!*known) *known = read_ranks(communicator, timeout);
    return *known;
  };
}

Communicator connect_over_mpi(int communicator, GroupOptions options) {
  options.backend = backend_over_mpi(communicator, options.backend == "auto" ? "mpi" : options.backend);
  return connect(
      read_cluster_environment(Environment::of_process(), ranks_over_mpi(communicator, options.rendezvous_timeout)),
      options);
}

}  // namespace muster::comm
