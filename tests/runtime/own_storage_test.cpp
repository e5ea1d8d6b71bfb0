#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/object_store.h"
#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "muster/tree/state.h"
#include "runtime/ranks.h"
#include "runtime/saved_net.h"
#include "runtime/temporary_folder.h"

namespace muster::own_storage {
namespace {

namespace fs = std::filesystem;
using muster::testing::as_ranks;
using muster::testing::thrown;
using saving::SavedNet;

AcceleratorOptions options_with(const std::shared_ptr<CheckpointStorage>& storage) {
  return {.project = {.automatic_checkpoint_naming = true, .directory = "run", .storage = storage, .total_limit = 2},
          .strategy = "fsdp"};
}

double train(Accelerator& accelerator, const std::function<void()>& before, int steps,
             const std::function<void()>& save) {
  torch::manual_seed(5);
  SavedNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  before();
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const auto output = model(torch::ones({4, 3})).pow(2).mean();
    loss = output.item<double>();
    accelerator.backward(output);
    optimizer.step();
    optimizer.zero_grad();
    save();
  }
  return loss;
}

TEST(OwnStorage, TrainingResumesFromItOnAnotherNumberOfRanks) {
  const testing::InheritedFolder own;
  const auto bucket = own.path() / "bucket";
  const auto run = [&](int ranks, int asynchronous, const std::string& label) {
    as_ranks(
        ranks,
        [&] {
          const auto store = std::make_shared<ObjectStore>(bucket);
          Accelerator accelerator(options_with(store));
          const auto load = [&] { store->list("run/checkpoints").empty() ? void() : accelerator.load_state(); };
          const auto save = [&] { accelerator.save_state({}, {.asynchronous = asynchronous > 0}); };
          const auto begin = [&] {
            load();
            accelerator.wait_for_everyone();
          };
          train(accelerator, begin, 2, save);
          accelerator.wait_for_save();
        },
        label);
  };
  run(2, 0, "first");
  run(3, 1, "second");
  run(1, 0, "third");
  const auto store = std::make_shared<ObjectStore>(bucket);
  EXPECT_EQ(store->list("run/checkpoints"), (std::vector<std::string>{"checkpoint_4", "checkpoint_5"}));
  as_ranks(
      1,
      [&] {
        double resumed = 0, uninterrupted = 0;
        {
          Accelerator accelerator(options_with(std::make_shared<ObjectStore>(bucket)));
          resumed = train(
              accelerator, [&] { accelerator.load_state(); }, 1, [] {});
        }
        {
          Accelerator accelerator({.strategy = "fsdp"});
          uninterrupted = train(
              accelerator, [] {}, 7, [] {});
        }
        EXPECT_NEAR(resumed, uninterrupted, 1e-6 * uninterrupted) << "worlds sum in different orders";
      },
      "compare");
}

TEST(OwnStorage, NamedItemsGoThereToo) {
  const testing::TemporaryFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder.path());
  Fabric fabric({.project = {.storage = store}});
  std::string note = "saved";
  fabric.save("best", {{"note", note}});
  note = "now";
  fabric.load("best", {{"note", note}});
  EXPECT_EQ(note, "saved");
  EXPECT_EQ(store->list(""), std::vector<std::string>{"best"});
  EXPECT_EQ(thrown([&] { fabric.load("worst", {{"note", note}}); }).substr(0, 5), "MU210");
}

TEST(OwnStorage, AFailureOfOneRankIsTheErrorOfAllAndChangesNothing) {
  const testing::InheritedFolder own;
  as_ranks(2, [&] {
    std::string fails;
    const auto store =
        std::make_shared<ObjectStore>(own.path() / "bucket", [&](const std::string& function, const std::string&) {
          if (function == fails) throw std::runtime_error("no answer");
        });
    Accelerator accelerator({.project = {.storage = store}});
    SavedNet net;
    auto model = accelerator.prepare(net);
    accelerator.save_state("x");
    const torch::NoGradGuard no_grad;
    net->a->weight.fill_(3);
    if (accelerator.process_index() == 1) fails = "read";
    auto message = thrown([&] { accelerator.load_state("x"); });
    EXPECT_EQ(message.substr(0, 5), "MU314") << message;
    EXPECT_NE(message.find("no answer"), std::string::npos) << message;
    EXPECT_EQ(net->a->weight.min().item<float>(), 3);
    if (accelerator.process_index() == 1) fails = "create";
    message = thrown([&] { accelerator.save_state("x"); });
    EXPECT_EQ(message.substr(0, 5), "MU313") << message;
    EXPECT_NE(message.find("rank 1: "), std::string::npos) << message;
    fails = "";
    accelerator.load_state("x");
    EXPECT_NE(net->a->weight.min().item<float>(), 3);
  });
}

}  // namespace
}  // namespace muster::own_storage
