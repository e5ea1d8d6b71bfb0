#include <gtest/gtest.h>

#include "parallel/sharded/unshard_scheduler.h"

namespace muster::parallel {
namespace {

void pass(ExecutionOrder& order, std::initializer_list<size_t> units) {
  order.begin();
  for (const auto unit : units) order.came_to(unit);
  order.end();
}

TEST(ExecutionOrder, TellsWhatTheLastPassDidNext) {
  ExecutionOrder order;
  order.begin();
  EXPECT_FALSE(order.coming(0));
  pass(order, {3, 1, 3, 2});
  order.begin();
  EXPECT_EQ(order.coming(0), 3u);
  order.came_to(3);
  EXPECT_EQ(order.coming(0), 1u);
  EXPECT_EQ(order.coming(1), 3u);
  order.came_to(1);
  order.came_to(3);
  EXPECT_EQ(order.coming(0), 2u);
  order.came_to(2);
  EXPECT_FALSE(order.coming(0));
}

TEST(ExecutionOrder, SkipsAndNewWays) {
  ExecutionOrder order;
  pass(order, {0, 1, 2, 3});
  order.begin();
  order.came_to(0);
  order.came_to(2);
  EXPECT_EQ(order.coming(0), 3u);  // 1 was passed over
  order.came_to(1);
  EXPECT_EQ(order.coming(0), 2u);  // went back
  order.came_to(9);
  EXPECT_FALSE(order.coming(0));  // never seen
  order.came_to(3);
  order.end();
  order.begin();
  order.came_to(2);
  EXPECT_EQ(order.coming(0), 1u);
}

TEST(ExecutionOrder, APassThatCameNowhereIsNone) {
  ExecutionOrder order;
  pass(order, {4, 5});
  pass(order, {});
  order.begin();
  EXPECT_EQ(order.coming(1), 5u);
}

}  // namespace
}  // namespace muster::parallel
