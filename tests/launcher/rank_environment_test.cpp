#include <gtest/gtest.h>

#include "launcher/job.h"
#include "muster/cluster/cluster.h"

namespace muster::launcher {
namespace {

Job job_of_two_nodes() {
  Job job;
  job.cores = 7;
  job.main_address = "alpha";
  job.main_port = 4711;
  job.name = "job";
  job.node_rank = 1;
  job.nodes = 2;
  job.processes = 3;
  return job;
}

TEST(RankEnvironment, IsReadBackAsTheRankThatWasMeant) {
  auto cluster = read_cluster_environment(rank_environment({{"HOME", "/h"}}, job_of_two_nodes(), 2));
  EXPECT_EQ(cluster.launcher, LauncherKind::muster);
  EXPECT_EQ(cluster.rank, 5);
  EXPECT_EQ(cluster.world_size, 6);
  EXPECT_EQ(cluster.local_rank, 2);
  EXPECT_EQ(cluster.local_world_size, 3);
  EXPECT_EQ(cluster.node_rank, 1);
  EXPECT_EQ(cluster.nodes, 2);
  EXPECT_EQ(cluster.main_address, "alpha");
  EXPECT_EQ(cluster.main_port, 4711);
  EXPECT_EQ(cluster.job, "job");
  EXPECT_EQ(cluster.store_listen_fd, -1);
}

TEST(RankEnvironment, OnlyRankZeroOfAllNodesGetsTheSocket) {
  Job job = job_of_two_nodes();
  job.store_fd = 9;
  EXPECT_FALSE(rank_environment({}, job, 0).has("MUSTER_STORE_FD"));
  job.node_rank = 0;
  EXPECT_EQ(rank_environment({}, job, 0).find("MUSTER_STORE_FD"), "9");
  EXPECT_FALSE(rank_environment({{"MUSTER_STORE_FD", "4"}}, job, 1).has("MUSTER_STORE_FD"));
}

TEST(RankEnvironment, CoresAreSharedOutUnlessTold) {
  Job job = job_of_two_nodes();
  EXPECT_EQ(rank_environment({}, job, 0).find("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(rank_environment({{"OMP_NUM_THREADS", "5"}}, job, 0).find("OMP_NUM_THREADS"), "5");
  job.threads = 4;
  EXPECT_EQ(rank_environment({{"OMP_NUM_THREADS", "5"}}, job, 0).find("OMP_NUM_THREADS"), "4");
  job.threads = 0;
  job.processes = 20;
  EXPECT_EQ(rank_environment({}, job, 0).find("OMP_NUM_THREADS"), "1");
}

TEST(RankEnvironment, RequestsAndDevicesArePassedAndOtherLaunchersRemoved) {
  Job job = job_of_two_nodes();
  job.device_indices = {4, 2, 6};
  job.options = "{\"precision\":\"bf16-mixed\"}";
  auto environment = rank_environment({{"TORCHELASTIC_RUN_ID", "x"}, {"ROLE_RANK", "0"}, {"HOME", "/h"}}, job, 1);
  EXPECT_EQ(environment.find("MUSTER_DEVICE_INDEX"), "2");
  EXPECT_FALSE(environment.has("CUDA_VISIBLE_DEVICES"));
  job.visible_devices = {"MIG-a", "MIG-b", "MIG-c"};
  const auto alone = rank_environment({{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c"}}, job, 1);
  EXPECT_EQ(alone.find("CUDA_VISIBLE_DEVICES"), "MIG-b");
  EXPECT_EQ(alone.find("MUSTER_DEVICE_INDEX"), "0") << "the only one that it sees";
  EXPECT_EQ(environment.find("MUSTER_OPTIONS"), job.options);
  EXPECT_EQ(environment.find("HOME"), "/h");
  EXPECT_FALSE(environment.has("TORCHELASTIC_RUN_ID"));
  EXPECT_FALSE(environment.has("ROLE_RANK"));
  job.options.clear();
  EXPECT_EQ(rank_environment({{"MUSTER_OPTIONS", "precision=bf16"}}, job, 1).find("MUSTER_OPTIONS"), "precision=bf16");
}

TEST(RankEnvironment, TheSecretGoesToEveryRankAndItsFileToNone) {
  Job job = job_of_two_nodes();
  const Environment parent{{"MUSTER_SECRET", std::string(32, 'o')}, {"MUSTER_SECRET_FILE", "/f"}};
  EXPECT_FALSE(rank_environment(parent, job, 0).has("MUSTER_SECRET")) << "another job's secret";
  job.secret = cluster::Secret(std::string(32, 's'));
  for (int rank : {0, 2}) EXPECT_EQ(rank_environment(parent, job, rank).find("MUSTER_SECRET"), std::string(32, 's'));
  EXPECT_FALSE(rank_environment(parent, job, 0).has("MUSTER_SECRET_FILE"));
}

TEST(RankEnvironment, SaysHowOftenTheRanksWereStartedAgainAndSinceWhenTheJobRuns) {
  Job job = job_of_two_nodes();
  const Environment outer{
      {"MUSTER_RESTART_COUNT", "7"}, {"TORCHELASTIC_RESTART_COUNT", "8"}, {"MUSTER_JOB_START", "9"}};
  auto environment = rank_environment(outer, job, 0);
  for (const auto* name : {"MUSTER_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_EQ(environment.find(name), "0") << "another job's";
  EXPECT_FALSE(environment.has("MUSTER_JOB_START")) << "another job's";
  job.restarts = 2;
  job.start = 1700000000123;
  environment = rank_environment(outer, job, 0);
  EXPECT_EQ(environment.find("MUSTER_RESTART_COUNT"), "2");
  EXPECT_EQ(environment.find("TORCHELASTIC_RESTART_COUNT"), "2");
  EXPECT_EQ(environment.find("MUSTER_JOB_START"), "1700000000123");
  EXPECT_EQ(read_cluster_environment(environment).restart_count, 2);
}

TEST(RankEnvironment, JobNamesDiffer) { EXPECT_NE(new_job_name(), new_job_name()); }

}  // namespace
}  // namespace muster::launcher
