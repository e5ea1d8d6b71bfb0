#include <gtest/gtest.h>

#include "base/text.h"

namespace muster {
namespace {

TEST(KnownNames, TheNearestIsNamedIfOneIsNear) {
  const std::vector<std::string> known{"devices", "log_dir", "num_nodes"};
  EXPECT_EQ(nearest_name("device", known), "devices");
  EXPECT_EQ(nearest_name("Log-Dir", known), "log_dir");
  EXPECT_EQ(nearest_name("logdri", known), "log_dir");
  EXPECT_EQ(nearest_name("batch_size", known), "");
  EXPECT_EQ(nearest_name("", known), "");
  EXPECT_EQ(known_names("nodes_num", {"num_nodes"}), "; the known ones are num_nodes");
  EXPECT_EQ(known_names("devcies", {"devices", "log_dir"}),
            "; nearest is 'devices'; the known ones are devices, log_dir");
}

}  // namespace
}  // namespace muster
