#include <gtest/gtest.h>

#include "launcher/job.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

TEST(Nodes, ContradictionsAreMU036) {
  for (const StartRound& wrong :
       {StartRound{"", 0, "", 0, 0}, StartRound{"", 0, "", 1, 1}, StartRound{"a", 0, "", -1, 2},
        StartRound{"a", 0, "", 2, 2}, StartRound{"a", 70000, "", 0, 2}, StartRound{"", 0, "", 0, 2}}) {
    try {
      check_nodes(wrong);
      ADD_FAILURE() << wrong.node_rank << " of " << wrong.nodes;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU036");
    }
  }
  EXPECT_NO_THROW(check_nodes({"a", 0, "", 1, 2}));
}

TEST(Nodes, OneNodeMeetsOnAFreePortOfTheLoopback) {
  Job job;
  job.processes = 2;
  place_store("", 0, job);
  auto store = open_store(job);
  EXPECT_EQ(job.main_address, "127.0.0.1");
  EXPECT_EQ(job.main_port, store.port());
  EXPECT_EQ(job.store_fd, store.fd());
  EXPECT_GE(store.fd(), 0);
}

TEST(Nodes, SeveralNodesMeetWhereTheyWereTold) {
  Job job;
  job.nodes = 2;
  job.node_rank = 1;
  place_store("alpha", 0, job);
  auto store = open_store(job);
  EXPECT_EQ(job.main_address, "alpha");
  EXPECT_EQ(job.main_port, 29400);
  EXPECT_EQ(job.name, "alpha-29400");
  EXPECT_EQ(store.fd(), -1) << "only the first node listens";
}

TEST(Nodes, SeveralNodesOnTheLoopbackListenThereAlone) {
  Job job;
  job.nodes = 2;
  place_store("127.0.0.1", 0, job);
  job.main_port = 0;
  EXPECT_EQ(cluster::bound_address(open_store(job).fd()), "127.0.0.1");
}

TEST(Nodes, OneNodeHasASecretAndSeveralTheOneThatTheyWereGiven) {
  const std::string given(40, 'x');
  const auto one = secret_of_job("", {}, 1);
  EXPECT_TRUE(one.is_given());
  EXPECT_NE(one.reveal(), secret_of_job("", {}, 1).reveal());
  EXPECT_FALSE(secret_of_job("", {}, 2).is_given());
  for (int nodes : {1, 2}) EXPECT_EQ(secret_of_job("", {{"MUSTER_SECRET", given}}, nodes).reveal(), given);
  EXPECT_THROW(secret_of_job("/no/such/file", {{"MUSTER_SECRET", given}}, 2), ConfigError);
}

TEST(Nodes, AWorldOfOneListensToNobodyButHasAPort) {
  Job job;
  place_store("", 0, job);
  EXPECT_EQ(open_store(job).fd(), -1);
  EXPECT_GT(job.main_port, 0);
  EXPECT_EQ(job.store_fd, -1);
}

}  // namespace
}  // namespace muster::launcher
