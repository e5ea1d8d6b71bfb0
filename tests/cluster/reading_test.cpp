#include "cluster/reading.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::cluster {
namespace {

TEST(Reading, NumbersAreWholeAndInRange) {
  Environment variables{{"A", "7"}, {"B", "7x"}, {"C", ""}, {"D", "99999999999"}, {"E", " 7"}, {"F", "-3"}};
  EXPECT_EQ(read_number(variables, "A"), 7);
  EXPECT_EQ(read_number(variables, "C"), std::nullopt);
  for (auto name : {"B", "D", "E", "F"}) EXPECT_THROW(read_number(variables, name), ConfigError) << name;
  EXPECT_THROW(read_number(variables, "A", 8, 9), ConfigError);
  EXPECT_EQ(need_number(variables, "A", "B"), 7);
  EXPECT_THROW(need_number(variables, "C", "B"), ConfigError);
}

TEST(Reading, FilesAreNamedByTheJobWithoutSurprises) {
  ClusterEnvironment cluster;
  cluster.job = "../a b@1";
  use_file_rendezvous(cluster);
  EXPECT_EQ(cluster.store_path, ".._a_b_1.store");
  EXPECT_EQ(cluster.rendezvous, RendezvousKind::file);
}

TEST(Reading, PresentNamesAreListed) {
  EXPECT_EQ(present({{"A", "1"}, {"B", ""}}, {"A", "B", "C"}), std::vector<std::string>{"A"});
}

}  // namespace
}  // namespace muster::cluster
