#include <string>

#include <gtest/gtest.h>

#include "trainer/called_program.h"
#include "trainer/main_program.h"

namespace muster::trainer {
namespace {

using namespace testing;

TEST(MainHelp, ShowsOptionsWithTheirDefaults) {
  const auto help = [](const Words& words) {
    const auto result = read(words, {}, {.max_epochs = 10});
    EXPECT_EQ(result.call.exit_code, 0);
    return result.call.output;
  };
  const auto all = help({"--help"});
  expect_in(all, {"Usage: train COMMAND", "  fit  ", "  validate  ", "--model.rate", "number [0.1] {MUSTER_MODEL_RATE}",
                  "--model.sizes.in", "--data.workers", "--ckpt_path", "--print_config", "--seed_everything"});
  EXPECT_EQ(all.find("  test "), std::string::npos) << all;
  const auto fit = help({"fit", "-h", "--model.rate", "wrong"});
  expect_in(fit, {"Usage: train fit", "--trainer.max_epochs", "[10] {MUSTER_TRAINER_MAX_EPOCHS}", "--trainer.devices",
                  "--trainer.accumulate_grad_batches", "--model.rate"});
}

}  // namespace
}  // namespace muster::trainer
