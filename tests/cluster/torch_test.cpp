#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

/// As torchrun --nnodes 2 --nproc-per-node 2 sets them for the last rank.
const Environment kTorchrun{{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"ROLE_RANK", "3"},
                            {"MASTER_ADDR", "alpha"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "0"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Environment kMuster{
    {"MUSTER_JOB", "12-ab"},   {"RANK", "0"},           {"WORLD_SIZE", "2"},       {"LOCAL_RANK", "0"},
    {"LOCAL_WORLD_SIZE", "2"}, {"GROUP_RANK", "0"},     {"GROUP_WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"},
    {"MASTER_PORT", "40000"},  {"MUSTER_STORE_FD", "5"}};

TEST(Torch, TorchrunIsReadWithItsStore) {
  check_readings({
      {kTorchrun, "torchrun 3/4 local 1/2 node 1/2 tcp alpha:29500 external"},
      {with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}}),
       "torchrun 3/4 local 1/2 node 1/2 tcp alpha:29500 external restarts 2"},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), "torchrun 3/4 local 1/2 node 1/2 tcp alpha:29500"},
      {with(kTorchrun, {{"GROUP_WORLD_SIZE", ""}, {"GROUP_RANK", ""}}),
       "torchrun 3/4 local 1/2 node 1/2 tcp alpha:29500 external"},
  });
}

TEST(Torch, RestartsAreKeptApartInTheStore) {
  const auto again = [](const Environment& launched, const char* count) {
    return read_cluster_environment(with(launched, {{count, "1"}}));
  };
  for (const auto& [launched, count] :
       {std::pair(kTorchrun, "TORCHELASTIC_RESTART_COUNT"), {kMuster, "MUSTER_RESTART_COUNT"}})
    EXPECT_NE(read_cluster_environment(launched).store_prefix, again(launched, count).store_prefix);
}

TEST(Torch, OurOwnLauncherIsRead) {
  check_readings({
      {kMuster, "muster 0/2 local 0/2 node 0/1 tcp 127.0.0.1:40000 fd 5"},
      {with(kMuster, {{"RANK", "1"}, {"LOCAL_RANK", "1"}}), "muster 1/2 local 1/2 node 0/1 tcp 127.0.0.1:40000"},
      {with(kMuster, {{"MUSTER_DEVICE_INDEX", "3"}, {"MUSTER_STORE_FD", ""}}),
       "muster 0/2 local 0/2 node 0/1 tcp 127.0.0.1:40000 device 3"},
      {with(kMuster, {{"MUSTER_RESTART_COUNT", "2"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}),
       "muster 0/2 local 0/2 node 0/1 tcp 127.0.0.1:40000 restarts 2 fd 5"},
      {with(kMuster, {{"WORLD_SIZE", "1"}, {"LOCAL_WORLD_SIZE", "1"}}), "muster 0/1 local 0/1 node 0/1"},
  });
}

TEST(Torch, RankAndWorldSizeAloneAreEnough) {
  Environment plain{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "7"}};
  check_readings({
      {plain, "environment 1/3 local 0/1 node 1/3 tcp alpha:7"},
      {with(plain, {{"LOCAL_RANK", "1"}}), "environment 1/3 local 1/3 node 0/1 tcp alpha:7"},
      {with(plain, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), "environment 1/3 local 1/2 node 0/2 tcp alpha:7"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "environment 0/1 local 0/1 node 0/1"},
  });
}

TEST(Torch, LightningsLauncherSetsNoRank) {
  Environment lightning{
      {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "12"}};
  check_readings({
      {lightning, "environment 1/4 local 1/4 node 0/1 tcp a:12"},
      {with(lightning, {{"NODE_RANK", ""}}), "environment 1/4 local 1/4 node 0/1 tcp a:12"},
      {with(lightning, {{"NODE_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), "environment 3/4 local 1/2 node 1/2 tcp a:12"},
      {with(lightning, {{"NODE_RANK", ""}, {"GROUP_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
       "environment 3/4 local 1/2 node 1/2 tcp a:12"},
  });
  check_refusals({{with(lightning, {{"NODE_RANK", "1"}}), "MU020", {"NODE_RANK", "LOCAL_WORLD_SIZE"}}});
}

TEST(Torch, HalfSetOrContradictingVariablesAreNamed) {
  check_refusals({
      {with(kTorchrun, {{"RANK", ""}}), "MU020", {"TORCHELASTIC_RUN_ID", "RANK"}},
      {with(kTorchrun, {{"MASTER_ADDR", ""}}), "MU020", {"MASTER_ADDR"}},
      {with(kTorchrun, {{"MASTER_PORT", ""}}), "MU020", {"MASTER_PORT"}},
      {with(kTorchrun, {{"RANK", "4"}}), "MU022", {"RANK is 4", "WORLD_SIZE is 4"}},
      {with(kTorchrun, {{"LOCAL_RANK", "2"}}), "MU022", {"LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"}},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}), "MU022", {"LOCAL_WORLD_SIZE is 5", "WORLD_SIZE is 4"}},
      {with(kTorchrun, {{"GROUP_RANK", "2"}}), "MU022", {"GROUP_RANK is 2", "GROUP_WORLD_SIZE is 2"}},
      {with(kTorchrun, {{"RANK", "three"}}), "MU021", {"RANK is 'three'"}},
      {with(kTorchrun, {{"RANK", "-1"}}), "MU021", {"RANK is -1"}},
      {with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MU021", {"MASTER_PORT is 70000"}},
      {with(kMuster, {{"LOCAL_RANK", ""}}), "MU020", {"MUSTER_JOB", "LOCAL_RANK"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MU020", {"RANK", "MASTER_ADDR"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "MU020", {"MASTER_ADDR", "MASTER_PORT"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       "MU020",
       {"LOCAL_WORLD_SIZE", "LOCAL_RANK"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
       "MU022",
       {"LOCAL_RANK is 1", "RANK is 0"}},
  });
}

}  // namespace
}  // namespace muster::cluster::testing
