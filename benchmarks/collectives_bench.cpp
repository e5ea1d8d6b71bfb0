// Microseconds of one collective between ranks of one host, one thread each. Argument: the backend.
// Cases: "all_reduce float32 4096", "all_gather bfloat16 8" (bytes that a rank gives), "barrier"; with "shared" at the
// end it is in memory that the ranks share, and is gathered in place. A gather makes no memory, nor do its peers.
// Limits: "add float32 4096", all ranks adding up so many bytes; "copy float32 4096", each of two copying what the
// other has written to plain shared memory. Each rank writes its tensor before each operation, as training does; the
// time of the writes alone is taken off.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "comm/shared_tensor.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/rendezvous.h"
#include "protocol.h"

namespace {

enum class Kind { all_reduce, all_gather, add, copy, barrier };

struct Wanted {
  Kind kind{};
  std::string dtype = "float32";
  int64_t bytes = 0;
  std::string place = "private";
};

Kind kind_of(const std::string& operation) {
  if (operation == "all_reduce") return Kind::all_reduce;
  if (operation == "all_gather") return Kind::all_gather;
  if (operation == "add") return Kind::add;
  if (operation == "copy") return Kind::copy;
  if (operation == "barrier") return Kind::barrier;
  throw std::invalid_argument("unknown operation " + operation);
}

Wanted parse(const std::string& name) {
  Wanted wanted;
  std::string operation;
  std::istringstream words(name);
  words >> operation >> wanted.dtype >> wanted.bytes >> wanted.place;
  wanted.kind = kind_of(operation);
  return wanted;
}

int64_t repetitions(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{64} << 20) / std::max<int64_t>(bytes, 1), 4, 400);
}

bench::Measured barriers(const muster::comm::Communicator& group) {
  constexpr int kTimes = 1000;
  group.barrier();
  const double seconds = bench::seconds([&] {
    for (int i = 0; i < kTimes; ++i) group.barrier();
  });
  return {.value = seconds / kTimes * 1e6, .check = 1};
}

struct Memory {
  torch::Tensor tensor;
  torch::Tensor whole{};  ///< gathered into; in shared memory `tensor` is this rank's row of it
  torch::Tensor peers{};  ///< to be copied
};

std::string name_of(int rank) {
  const char* port = std::getenv("MASTER_PORT");
  return "/muster-bench-" + std::string(port ? port : "") + "-" + std::to_string(rank);
}

torch::Tensor mapped(int rank, const torch::Tensor& like) {
  const auto bytes = static_cast<std::size_t>(like.nbytes());
  const int file = ::shm_open(name_of(rank).c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("no shared memory");
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (address == MAP_FAILED) throw std::runtime_error("no mapping of shared memory");
  return torch::from_blob(
      address, like.sizes(), [bytes](void* at) { ::munmap(at, bytes); }, like.options());
}

/// Without anything of ours between the two ranks.
Memory plain_memory(const muster::comm::Communicator& group, const torch::Tensor& own) {
  Memory memory{.tensor = mapped(group.rank(), own)};
  group.barrier();
  memory.peers = mapped(1 - group.rank(), own);
  group.barrier();
  ::shm_unlink(name_of(group.rank()).c_str());
  return memory;
}

/// As replicated and sharded models have it: gradients to which peers write, and parameters that are gathered in place.
Memory memory_for(const muster::comm::Communicator& group, const Wanted& wanted, const torch::Tensor& own) {
  using muster::comm::PeerAccess;
  if (wanted.kind == Kind::copy) return plain_memory(group, own);
  const bool gathers = wanted.kind == Kind::all_gather;
  if (wanted.place != "shared")
    return {torch::empty_like(own),
            gathers ? torch::empty({group.size(), own.numel()}, own.options()) : torch::Tensor()};
  if (!gathers) return {muster::comm::shared_zeros(group, own.numel(), own.options(), PeerAccess::write)};
  const torch::Tensor whole = muster::comm::shared_zeros(group, group.size() * own.numel(), own.options());
  const torch::Tensor rows = whole.view({group.size(), -1});
  return {rows[group.rank()], rows};
}

bench::Measured measure(const muster::comm::Communicator& group, const std::string& name) {
  const Wanted wanted = parse(name);
  const Kind kind = wanted.kind;
  if (kind == Kind::barrier) return barriers(group);
  const auto dtype = wanted.dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
  const torch::Tensor own =
      torch::full({wanted.bytes / static_cast<int64_t>(c10::elementSize(dtype))}, group.rank() + 1, dtype);
  const Memory memory = memory_for(group, wanted, own);
  const torch::Tensor copied = memory.peers.defined() ? torch::empty_like(own) : torch::Tensor();
  const torch::Tensor& tensor = memory.tensor;
  torch::Tensor result;
  const auto part = (own.numel() + group.size() - 1) / group.size();
  const auto times = repetitions(wanted.bytes);
  // An operator's dispatch would cost more than a small collective.
  const auto write = [&] {
    if (wanted.bytes <= 4096) std::memcpy(tensor.mutable_data_ptr(), own.const_data_ptr(), own.nbytes());
    else tensor.copy_(own);
  };
  const auto loop = [&](bool communicates) {
    group.barrier();
    return bench::seconds([&] {
      for (int64_t i = 0; i < times; ++i) {
        write();
        if (!communicates) continue;
        if (kind == Kind::all_reduce) group.all_reduce(result = tensor);
        else if (kind == Kind::add) (result = tensor).narrow(0, 0, part).add_(own.narrow(0, 0, part));
        else if (kind == Kind::copy) {
          group.barrier();
          std::memcpy((result = copied).mutable_data_ptr(), memory.peers.const_data_ptr(), own.nbytes());
          group.barrier();
        } else group.all_gather_into(result = memory.whole, tensor);
      }
    });
  };
  loop(true);
  const double both = loop(true);
  double sum = 0;
  for (int rank = 0; rank < group.size(); ++rank) sum += rank + 1;
  const bool right = kind == Kind::add        ? result[0].item<float>() == 2 * own[0].item<float>()
                     : memory.peers.defined() ? result.eq(sum - group.rank() - 1).all().item<bool>()
                     : kind == Kind::all_reduce
                         ? result.eq(sum).all().item<bool>()
                         : result[0].eq(1).all().item<bool>() && result[-1].eq(group.size()).all().item<bool>();
  const double writes = loop(false);
  return {.value = std::max(both - writes, 1e-9) / static_cast<double>(times) * 1e6, .check = sum, .verified = right};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const auto group = muster::comm::connect(muster::read_cluster_environment(), {.backend = argc > 1 ? argv[1] : "shm"});
  return bench::serve([&](const std::string& name) { return measure(group, name); });
}
