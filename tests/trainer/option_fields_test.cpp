#include <cstdlib>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "options/program_options.h"
#include "options/trainer_fields.h"
#include "trainer/counting_module.h"

namespace muster::trainer {
namespace {

/// The loops decide them: a launcher that asks for the other value is refused.
const std::set<std::string> kOfTheLoops{"gradient_accumulation.sync_with_dataloader", "step_scheduler_with_optimizer"};

// A default that differs from the table's would stand for a value of the program, which no launcher may replace.
TEST(TrainerOptionFields, DefaultsAreThoseOfTheTable) {
  const auto options = runtime_options({});
  for (const auto& option : runtime::runtime_option_table().options) {
    const auto& described = option.description;
    EXPECT_EQ(option.write(options) != described.default_text, kOfTheLoops.contains(described.name))
        << described.name << " is " << option.write(options) << " in TrainerOptions and " << described.default_text
        << " in the table";
  }
}

TEST(TrainerOptionFields, TheLauncherChoosesTheBackend) {
  setenv("MUSTER_BACKEND", "shm", 1);
  EXPECT_NO_THROW(Trainer(testing::quiet({})));
  unsetenv("MUSTER_BACKEND");
}

}  // namespace
}  // namespace muster::trainer
