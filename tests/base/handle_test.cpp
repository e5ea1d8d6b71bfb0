#include "muster/base/handle.h"

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

template <HandleType type>
std::string message_of_empty() {
  const Shared<type, int> empty;
  try {
    *empty = 1;
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Handle, AnEmptyOneSaysItsTypeAndWhatToDo) {  // MU322
  EXPECT_NE(message_of_empty<HandleType::model>().find("MU322: this muster::Model is empty"), std::string::npos);
  EXPECT_NE(message_of_empty<HandleType::optimizer>().find("muster::Optimizer is empty"), std::string::npos);
  EXPECT_NE(message_of_empty<HandleType::scheduler>().find("muster::Scheduler is empty"), std::string::npos);
  EXPECT_NE(message_of_empty<HandleType::data_loader>().find("muster::DataLoader is empty"), std::string::npos);
  EXPECT_NE(message_of_empty<HandleType::model>().find("assign the result of prepare"), std::string::npos);
}

TEST(Handle, IsEmptyAfterAMoveAndFullAfterAnAssignment) {
  Shared<HandleType::model, int> handle;
  EXPECT_FALSE(handle);
  handle = Shared<HandleType::model, int>(std::make_shared<int>(3));
  const auto copy = handle;
  const auto moved = std::move(handle);
  EXPECT_FALSE(handle);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(*copy, 3);
  EXPECT_EQ(copy.pointer(), moved.pointer());
  EXPECT_THROW((void)handle.pointer(), UsageError);
  EXPECT_THROW((void)handle.operator->(), UsageError);
}

}  // namespace
}  // namespace muster
