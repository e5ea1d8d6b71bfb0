#include "shard/device_mesh.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster {
namespace {

using testing::run_threads;

/// The ranks of a group, in its order, told by themselves.
std::vector<int64_t> members(const comm::Communicator& group, int rank) {
  const auto all = group.all_gather(torch::tensor(int64_t{rank}));
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

using Members = std::vector<int64_t>;

TEST(DeviceMesh, HasAGroupForEachMeshDim) {
  run_threads(6, 1, [](comm::Communicator world) {
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 3}});
    const int rank = world.rank();
    EXPECT_EQ(mesh.coordinate("replicate"), rank / 3);
    EXPECT_EQ(mesh.coordinate("shard"), rank % 3);
    const Members shard = rank < 3 ? Members{0, 1, 2} : Members{3, 4, 5};
    EXPECT_EQ(members(mesh.group("shard"), rank), shard);
    EXPECT_EQ(members(mesh.group("replicate"), rank), (Members{rank % 3, rank % 3 + 3}));
    EXPECT_EQ(mesh.group("shard").rank(), rank % 3);
    EXPECT_EQ(mesh.rank_at({1, 2}), 5);
    EXPECT_EQ(mesh.describe(), "replicate 2 x shard 3");
    EXPECT_EQ(mesh.size(), 6);
  });
}

TEST(DeviceMesh, OneMeshDimTakesWhatTheOthersLeave) {
  run_threads(4, 2, [](comm::Communicator world) {
    const DeviceMesh mesh(world, {{"replicate", 0}, {"shard", 2}});
    EXPECT_EQ(mesh.size("replicate"), 2);
    const DeviceMesh line(world, {{"shard", 0}});
    EXPECT_EQ(line.size("shard"), 4);
    EXPECT_EQ(line.group("shard").group(), world.group());  // nothing new is made for it
    const DeviceMesh flat(world, {{"replicate", 1}, {"shard", 0}});
    EXPECT_EQ(flat.group("replicate").size(), 1);
  });
}

TEST(DeviceMesh, SlicesAndFlattensMeshDims) {
  run_threads(8, 3, [](comm::Communicator world) {
    const DeviceMesh mesh(world, {{"a", 2}, {"b", 2}, {"c", 2}});
    const int rank = world.rank(), a = rank / 4, b = rank / 2 % 2, c = rank % 2;
    const auto slice = mesh.slice({"c", "a"});
    EXPECT_EQ(slice.describe(), "a 2 x c 2");
    EXPECT_EQ(slice.coordinate("c"), c);
    EXPECT_EQ(members(slice.group("a"), rank), (Members{b * 2 + c, 4 + b * 2 + c}));
    EXPECT_EQ(slice.rank_at({1, 0}), 4 + b * 2);
    const auto joined = mesh.flatten({"b", "c"}, "bc");
    EXPECT_EQ(joined.describe(), "a 2 x bc 4");
    EXPECT_EQ(members(joined.group("bc"), rank), (Members{a * 4, a * 4 + 1, a * 4 + 2, a * 4 + 3}));
    EXPECT_EQ(testing::thrown_id([&] { mesh.flatten({"a", "c"}, "ac"); }), "MU094");
    EXPECT_EQ(testing::thrown_id([&] { mesh.flatten({"c", "b"}, "cb"); }), "MU094");
    EXPECT_EQ(testing::thrown_id([&] { slice.flatten({"a", "c"}, "ac"); }), "MU094");
    EXPECT_EQ(testing::thrown_id([&] { mesh.slice({"a", "a"}); }), "MU091");
  });
}

TEST(DeviceMesh, RefusesWhatDoesNotFit) {
  const comm::Communicator alone;
  EXPECT_EQ(testing::thrown_id([&] { DeviceMesh(alone, {{"a", 2}}); }), "MU090");
  EXPECT_EQ(testing::thrown_id([&] { DeviceMesh(alone, {{"a", 0}, {"b", 2}}); }), "MU090");
  EXPECT_EQ(testing::thrown_id([&] { DeviceMesh(alone, {{"a", 0}, {"b", 0}}); }), "MU090");
  for (const auto& bad : std::vector<std::vector<MeshDim>>{{}, {{"", 1}}, {{"a", 1}, {"a", 1}}, {{"a", -1}}})
    EXPECT_EQ(testing::thrown_id([&] { DeviceMesh(alone, bad); }), "MU091");
  const DeviceMesh mesh(alone, {{"replicate", 1}, {"shard", 1}});
  const auto unknown = testing::thrown([&] { mesh.group("data"); });
  EXPECT_NE(unknown.find("MU092"), std::string::npos);
  EXPECT_NE(unknown.find("replicate 1 x shard 1"), std::string::npos) << unknown;
  EXPECT_EQ(testing::thrown_id([&] { mesh.rank_at({0}); }), "MU093");
  EXPECT_EQ(testing::thrown_id([&] { mesh.rank_at({0, 1}); }), "MU093");
}

TEST(DeviceMesh, WorksOverProcesses) {
  testing::expect_processes(4, [](comm::Communicator world) {
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    auto sum = torch::tensor({static_cast<double>(world.rank())}, torch::kDouble);
    mesh.group("shard").all_reduce(sum);
    mesh.group("replicate").all_reduce(sum);
    EXPECT_EQ(sum.item<double>(), 6);
  });
}

}  // namespace
}  // namespace muster
