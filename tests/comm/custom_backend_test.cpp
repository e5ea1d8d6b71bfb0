#include "comm/custom_backend.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/gloo_transport.h"
#include "comm/samples.h"
#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;

/// ProcessGroupGloo itself, by its five stub headers, as a backend that somebody plugs in.
BackendEntry raw_gloo() {
  return {c10::DeviceType::CPU,
          [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const GroupOptions&) {
            return make_raw_gloo({"", true, std::chrono::seconds(30), store, {}}, "raw", rank, size);
          }};
}

void each_kind(const Communicator& comm) {
  const int world = comm.size(), rank = comm.rank();
  for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    at::Tensor tensor = sample(rank, 100, at::kFloat);
    comm.all_reduce(tensor, op);
    EXPECT_EQ(difference_in_bits(tensor, reduced(world, 100, at::kFloat, op)), "");
  }
  at::Tensor in = sample(rank, 10 * world, at::kFloat), out = at::empty({10});
  comm.reduce_scatter(out, in);
  at::Tensor sum = reduced(world, 10 * world, at::kFloat, ReduceOp::sum);
  EXPECT_EQ(difference_in_bits(out, sum.narrow(0, rank * 10, 10)), "");
  comm.reduce(in, 1);
  EXPECT_EQ(difference_in_bits(in, rank == 1 ? sum : sample(rank, 10 * world, at::kFloat)), "");
  EXPECT_EQ(difference_in_bits(comm.all_gather(sample(rank, 4, at::kLong))[1], sample(1, 4, at::kLong)), "");
  auto uneven = comm.all_gatherv(sample(rank, 3 + rank, at::kLong));
  EXPECT_EQ(difference_in_bits(uneven[1], sample(1, 4, at::kLong)), "");
  EXPECT_EQ(comm.gather(sample(rank, 2, at::kFloat), 1).size(), rank == 1 ? static_cast<std::size_t>(world) : 0u);
  std::vector<at::Tensor> parts;
  for (int to = 0; to < world; ++to) parts.push_back(sample(rank, 1 + to, at::kFloat));
  EXPECT_EQ(difference_in_bits(comm.all_to_all(parts)[1], sample(1, 1 + rank, at::kFloat)), "");
  EXPECT_EQ(difference_in_bits(comm.scatter(rank == 1 ? parts : std::vector<at::Tensor>(), 1),
                               sample(1, 1 + rank, at::kFloat)),
            "");
  at::Tensor cast = sample(rank, 9, at::kFloat);
  comm.broadcast(cast, 1);
  EXPECT_EQ(difference_in_bits(cast, sample(1, 9, at::kFloat)), "");
  if (rank == 0) comm.send(cast, 1);
  if (rank == 1) {
    comm.recv(cast.zero_(), 0);
    EXPECT_EQ(difference_in_bits(cast, sample(1, 9, at::kFloat)), "");
  }
  EXPECT_EQ(comm.broadcast_bytes(std::string(5, static_cast<char>('a' + rank)), 1), "bbbbb");
  EXPECT_EQ(comm.all_gather_bytes(std::string(1 + rank, 'x')).at(1), "xx");
  comm.barrier();
}

TEST(Plugged, OneCollectiveOfEachKindThroughAPlainBackend) {
  auto results = testing::run_processes(
      2,
      [](const ClusterEnvironment& cluster) {
        Communicator comm = connect(cluster, {.backend = "raw-gloo"}, {{"raw-gloo", raw_gloo()}});
        EXPECT_EQ(comm.backend(), "raw-gloo");
        each_kind(comm);
        Communicator again = comm.subgroup({0, 1});
        each_kind(again);
        try {
          again.internal(cluster.rank == 0 ? "loading" : "saving").all_gather_bytes("x");
          ADD_FAILURE() << "crossed messages were taken for each other";
        } catch (const CommError& error) {
          EXPECT_EQ(error.id(), "MU050");
          EXPECT_NE(std::string(error.what())
                        .find("for loading, rank 1 called the library's all_gather_bytes of uint8 for saving"),
                    std::string::npos)
              << error.what();
        }
        return ::testing::Test::HasFailure() ? 1 : 0;
      },
      {.arguments = {"--gtest_filter=Plugged.OneCollectiveOfEachKindThroughAPlainBackend"}});
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

TEST(Plugged, ARemovedBackendNamesTheOneToTake) {
  const auto message = testing::thrown([] { connect(ClusterEnvironment{}, {.backend = "mpi_collectives"}); });
  EXPECT_TRUE(message.starts_with("MU059") && message.find("take 'mpi'") != std::string::npos) << message;
}

TEST(Plugged, OneForADeviceIsToBeTheDeviceBackend) {
  auto entry = raw_gloo();
  entry.device = c10::DeviceType::XPU;
  const auto message = testing::thrown([&] {
    connect(ClusterEnvironment{}, {.backend = "raw-xpu"}, {{"raw-xpu", entry}});
  });
  EXPECT_TRUE(message.starts_with("MU059: the backend 'raw-xpu' that connect() was given is for tensors of xpu"))
      << message;
  EXPECT_NE(message.find("give it as device_backend"), std::string::npos) << message;
}

TEST(Plugged, UnknownNamesListTheKnownOnes) {
  try {
    connect(ClusterEnvironment{}, {.backend = "pigeon"}, {{"raw-gloo", raw_gloo()}});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU059");
    EXPECT_NE(std::string(error.what()).find("auto, gloo, shm, hierarchical, mpi, fake, raw-gloo"), std::string::npos)
        << error.what();
  }
}

struct BackendObjects : ::testing::Test {
  BackendObjects() { ::setenv("MUSTER_BACKEND_PATH", MUSTER_BINARY_DIR "/tests/objects:/nowhere", 1); }
  ~BackendObjects() override { ::unsetenv("MUSTER_BACKEND_PATH"); }
};

std::string refused(const DeviceBackend& wanted, c10::DeviceType device = c10::DeviceType::CUDA) {
  return testing::thrown([&] { find_device_backend(wanted, device); });
}

TEST_F(BackendObjects, AreLookedForWhereItIsSaid) {
  const auto message = refused("absent");
  EXPECT_TRUE(message.starts_with("MU558: device_backend is absent, but there is no libmuster_absent.so")) << message;
  for (const char* place :
       {"/tests/objects/libmuster_absent.so", "/nowhere/libmuster_absent.so", "/lib/libmuster_absent.so"})
    EXPECT_NE(message.find(place), std::string::npos) << message;
  EXPECT_TRUE(refused("/nowhere/mine.so").starts_with("MU558")) << refused("/nowhere/mine.so");
}

TEST_F(BackendObjects, ThatAreNoneOrOfAnotherBuildAreRefused) {
  const auto stranger = refused("stranger");
  EXPECT_TRUE(stranger.starts_with("MU562")) << stranger;
  EXPECT_NE(stranger.find("it does not define muster_backend_object"), std::string::npos) << stranger;
  const auto stale = refused(std::string(MUSTER_BINARY_DIR "/tests/objects/libmuster_stale.so"));
  EXPECT_TRUE(stale.starts_with("MU562")) << stale;
  EXPECT_NE(stale.find("built with Muster 0.0, LibTorch 1.13.0, and this program with Muster 0.1"), std::string::npos)
      << stale;
  EXPECT_TRUE(refused(std::string("/etc/hostname")).starts_with("MU562")) << refused(std::string("/etc/hostname"));
}

TEST_F(BackendObjects, AreNotOpenedWhereNoneIsWanted) {
  EXPECT_EQ(find_device_backend("none", c10::DeviceType::CUDA).entry, nullptr);
  EXPECT_EQ(find_device_backend("auto", c10::DeviceType::CPU).entry, nullptr);
  EXPECT_EQ(find_device_backend({}, c10::DeviceType::PrivateUse1).note, "no device_backend is given");
  const auto own = std::make_shared<BackendEntry>(BackendEntry{.device = c10::DeviceType::XPU, .make = {}});
  EXPECT_EQ(find_device_backend(own, c10::DeviceType::XPU).entry, own);
  EXPECT_EQ(find_device_backend(own, c10::DeviceType::CUDA).entry, nullptr);
}

/// The real object, where it was built: no GPU is here.
TEST_F(BackendObjects, OfNcclSaysWhatIsMissing) {
  ::unsetenv("MUSTER_BACKEND_PATH");
  const auto found = find_device_backend("auto", c10::DeviceType::CUDA);
  if (!std::filesystem::exists(MUSTER_BINARY_DIR "/lib/libmuster_nccl.so")) {
    EXPECT_EQ(found.entry, nullptr);
    EXPECT_NE(found.note.find("there is no libmuster_nccl.so"), std::string::npos) << found.note;
    EXPECT_NE(found.note.find("make cuda"), std::string::npos) << found.note;
    EXPECT_TRUE(refused("nccl").starts_with("MU558")) << refused("nccl");
    GTEST_SKIP() << "the object of NCCL is not built: LibTorch has no CUDA, or its headers are missing (make cuda)";
  }
  ASSERT_NE(found.entry, nullptr);
  EXPECT_NE(found.note.find("TORCH_NCCL_ASYNC_ERROR_HANDLING=0, TORCH_NCCL_ENABLE_MONITORING=0"), std::string::npos)
      << found.note;
  EXPECT_TRUE(refused("nccl", c10::DeviceType::CPU).starts_with("MU563")) << refused("nccl", c10::DeviceType::CPU);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(testing::thrown_id([&] { (void)found.entry->make(store, 0, 1, {}); }), "MU563");
}

}  // namespace
}  // namespace muster::comm
