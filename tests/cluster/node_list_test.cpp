#include <gtest/gtest.h>

#include "cluster/reading.h"
#include "muster/base/error.h"

namespace muster::cluster {
namespace {

TEST(NodeList, TheFirstHostIsFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"gpu[5-9]", "gpu5"},
      {"10.0.3.[100-110]", "10.0.3.100"},
      {"10.0.3.[089, 100-110]", "10.0.3.089"},
      {"gpu[22]", "gpu22"},
      {"gpu[1,5-9]", "gpu1"},
      {"a,b,c", "a"},
      {"a b", "a"},
      {"gpu[3,1], b", "gpu3"},
      {"rack[1-2]node[03-04]", "rack1node03"},
      {" a ", "a"},
      {"login", "login"},
      {"n[007]x,b", "n007x"},
  };
  for (auto [list, host] : cases) EXPECT_EQ(first_host(list, "V"), host) << list;
  for (auto wrong : {"", " ", "a[", "a[1", "a]", "a[]", "a[x-y]", "[,]"})
    EXPECT_THROW(first_host(wrong, "V"), ConfigError) << wrong;
}

TEST(NodeList, TasksOfEachNodeAreFound) {
  const int wanted[] = {2, 2, 2, 1, 4};
  for (int node = 0; node < 5; ++node) EXPECT_EQ(tasks_on_node("2(x3),1,4", node, "V"), wanted[node]);
  for (auto wrong : {"", "x", "2(x3", "2(y3)", "2(x)", "-1", "2,,3"})
    EXPECT_THROW(tasks_on_node(wrong, 1, "V"), ConfigError) << wrong;
  EXPECT_THROW(tasks_on_node("2(x3)", 3, "V"), ConfigError);
}

}  // namespace
}  // namespace muster::cluster
