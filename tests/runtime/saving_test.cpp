#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/saved_net.h"
#include "runtime/temporary_folder.h"

namespace muster::saving {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using testing::thrown;
using testing::thrown_id;

struct Note {
  std::string text;
  bool refuses = false;
  State state_dict() const { return text; }
  void load_state_dict(const State& state) {
    if (refuses) throw std::runtime_error("this object cannot be loaded");
    text = state.text();
  }
};

std::vector<at::Tensor> values_of(const SavedNet& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

void step(Accelerator& accelerator, const Model<SavedNetImpl>& model, Optimizer& optimizer) {
  optimizer.zero_grad();
  auto loss = model(torch::ones({4, 3})).pow(2).mean();
  accelerator.backward(loss);
  optimizer.step();
}

TEST(Saving, WhatDoesNotFitChangesNothing) {
  const TemporaryFolder folder;
  const auto saved = folder.path() / "saved";
  {
    Accelerator accelerator;
    SavedNet net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters()));
    step(accelerator, model, optimizer);
    accelerator.save_state(saved);
  }
  Accelerator accelerator;
  SavedNet net(7);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters()));
  Note note{"before"};
  const auto before = values_of(net);
  const auto message = thrown([&] { accelerator.load_state(saved); });
  EXPECT_NE(message.find("MU240"), std::string::npos);
  EXPECT_NE(message.find("a.weight: Float [5, 3] in the checkpoint, Float [7, 3] here"), std::string::npos) << message;
  EXPECT_TRUE(equal(values_of(net), before));
  accelerator.register_for_checkpointing(note);
  EXPECT_NE(thrown([&] { accelerator.load_state(saved); }).find("holds 0 objects and this program has 1"),
            std::string::npos);
}

TEST(Saving, AFailureInTheMiddleIsUndone) {
  const TemporaryFolder folder;
  Accelerator accelerator;
  SavedNet net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, scheduler, loader] =
      accelerator.prepare(net, sgd, StepLR(sgd, {.step_size = 1}), DataLoader(Numbers(), {.batch_size = 4}));
  Note first{"first"}, second{"second"};
  accelerator.register_for_checkpointing(first, second);
  accelerator.save_state(folder.path() / "saved");
  for (auto& batch : loader) {
    step(accelerator, model, optimizer);
    scheduler.step();
    if (batch[0].item<int64_t>() == 8) break;
  }
  first.text = "changed";
  second.refuses = true;
  const auto weights = values_of(net);
  const auto rate = sgd.param_groups()[0].options().get_lr();
  EXPECT_THROW(accelerator.load_state(folder.path() / "saved"), std::runtime_error);
  EXPECT_EQ(first.text, "changed");
  EXPECT_TRUE(equal(values_of(net), weights));
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), rate);
  EXPECT_EQ(loader.num_yielded(), 3);
  second.refuses = false;
  accelerator.load_state(folder.path() / "saved");
  EXPECT_EQ(first.text, "first");
  EXPECT_EQ(loader.num_yielded(), 0);
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.1);
}

TEST(Saving, OneRankThatCannotLoadKeepsAllAsTheyAre) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    const auto folder = testing::shared_folder(accelerator.group());
    Note note{"saved"};
    accelerator.register_for_checkpointing(note);
    accelerator.save_state(folder.path() / "saved");
    note.text = "now";
    note.refuses = accelerator.process_index() == 1;
    EXPECT_ANY_THROW(accelerator.load_state(folder.path() / "saved"));
    EXPECT_EQ(note.text, "now");
    note.refuses = false;
    accelerator.load_state(folder.path() / "saved");
    EXPECT_EQ(note.text, "saved");
  });
}

TEST(Saving, NumbersGoOnAfterTheHighestAndOldOnesGo) {
  const TemporaryFolder folder;
  const AcceleratorOptions options{
      .project = {.automatic_checkpoint_naming = true, .directory = folder.path().string(), .total_limit = 2}};
  Note note;
  {
    Accelerator accelerator(options);
    EXPECT_EQ(thrown_id([&] { accelerator.load_state(); }), "MU244");
    accelerator.register_for_checkpointing(note);
    for (const auto* text : {"a", "b", "c"}) {
      note.text = text;
      accelerator.save_state();
    }
  }
  Accelerator accelerator(options);
  accelerator.register_for_checkpointing(note);
  accelerator.load_state();
  EXPECT_EQ(note.text, "c");
  note.text = "d";
  EXPECT_EQ(accelerator.save_state().filename(), "checkpoint_3");
  EXPECT_TRUE(fs::exists(folder.path() / "checkpoints/checkpoint_2"));
  EXPECT_FALSE(fs::exists(folder.path() / "checkpoints/checkpoint_1"));
  Accelerator plain;
  EXPECT_EQ(thrown_id([&] { plain.save_state(); }), "MU244");
}

TEST(Saving, ATruncatedNewestCheckpointIsPassedOver) {
  const TemporaryFolder folder;
  Accelerator accelerator({.project = {.automatic_checkpoint_naming = true, .directory = folder.path().string()}});
  Note note;
  accelerator.register_for_checkpointing(note);
  for (const auto* text : {"a", "b"}) {
    note.text = text;
    accelerator.save_state();
  }
  const auto file = folder.path() / "checkpoints/checkpoint_1/rank-00000.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  ::testing::internal::CaptureStderr();
  accelerator.load_state();
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(note.text, "a");
  EXPECT_NE(said.find("checkpoint_1 is passed over"), std::string::npos) << said;
}

TEST(Saving, TheMainRankChoosesAndAllLoadTheSameSave) {
  testing::as_ranks(2, [] {
    const auto make = [](const fs::path& folder) {
      return Accelerator({.project = {.automatic_checkpoint_naming = true, .directory = folder.string()}});
    };
    Note note;
    fs::path base;
    const auto saved = [&](const fs::path& folder, const std::string& text) {  // by this rank alone
      write_checkpoint({.shared = State::Map{{"note", text}}}, folder / "checkpoints", {},
                       {.durability = Durability::none, .numbered = true});
    };
    const TemporaryFolder own;  // what this rank sees
    auto accelerator = make(own.path());
    const int rank = accelerator.process_index();
    accelerator.register_for_checkpointing(note);
    const auto shared = testing::shared_folder(accelerator.group());
    accelerator.save_state(shared.path() / "saved");
    const auto copy = [&](int number) {
      fs::create_directories(own.path() / "checkpoints");
      fs::copy(shared.path() / "saved", own.path() / "checkpoints" / ("checkpoint_" + std::to_string(number)));
    };
    copy(0);
    accelerator.load_state();  // alike
    if (rank == 1) copy(1);
    note.text = "kept";
    accelerator.load_state();  // rank 1 would have chosen another one
    EXPECT_EQ(note.text, "");
    saved(own.path(), rank == 0 ? "one" : "another");  // checkpoint_1 and checkpoint_2
    if (rank == 0) saved(own.path(), "one");
    note.text = "kept";
    const auto refusal = thrown([&] { accelerator.load_state(); });
    EXPECT_EQ(refusal.substr(0, 5), "MU247") << refusal;
    EXPECT_EQ(thrown_id([&] { accelerator.load_state(own.path() / "checkpoints/checkpoint_2"); }), "MU247")
        << "named folders, too";
    fs::remove_all(own.path() / "checkpoints");
    if (rank == 0) copy(0);
    EXPECT_NE(thrown([&] { accelerator.load_state(); }), "no error") << "rank 1 sees nothing";
    EXPECT_EQ(note.text, "kept");
  });
}

TEST(Saving, FabricComparesSavesToo) {
  testing::as_ranks(2, [] {
    Fabric fabric;
    const TemporaryFolder own;
    std::string name = "run";
    write_checkpoint({.shared = State::Map{{"name", name}}}, own.path() / "saved", {},
                     {.durability = Durability::none});
    EXPECT_EQ(thrown_id([&] { fabric.load(own.path() / "saved", {{"name", name}}); }), "MU247");
  });
}

TEST(Saving, HooksSeeAndChangeWhatIsSavedAndLoaded) {
  const TemporaryFolder folder;
  Accelerator accelerator;
  SavedNet net;
  auto model = accelerator.prepare(net);
  int saves = 0;
  auto handle = accelerator.register_save_state_pre_hook([&](State& state, const fs::path&) {
    ++saves;
    state.set("version", "mine");
  });
  accelerator.save_state(folder.path() / "one");
  handle.remove();
  handle.remove();
  accelerator.save_state(folder.path() / "two");
  EXPECT_EQ(saves, 1);
  std::string version;
  accelerator.register_load_state_pre_hook([&](State& state, const fs::path&) {
    if (const auto* found = state.find("version")) version = found->text();
    state.at("models").list()[0] = State();  // taken over by the hook
  });
  {
    const torch::NoGradGuard no_grad;
    net->a->weight.fill_(3);
  }
  accelerator.load_state(folder.path() / "one");
  EXPECT_EQ(version, "mine");
  EXPECT_EQ(net->a->weight[0][0].item<float>(), 3);
}

TEST(Saving, LibTorchsSchedulersGoOnAndItsPlateauIsRefused) {
  const TemporaryFolder folder;
  const auto rate_after = [&](bool resume) {
    Accelerator accelerator;
    SavedNet net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    torch::optim::StepLR steps(sgd, 3, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, steps);
    if (resume) accelerator.load_state(folder.path() / "saved");
    for (int i = 0; i < 2; ++i) {
      step(accelerator, model, optimizer);
      scheduler.step();
    }
    if (!resume) accelerator.save_state(folder.path() / "saved");
    return sgd.param_groups()[0].options().get_lr();
  };
  EXPECT_EQ(rate_after(false), 1.0);
  EXPECT_EQ(rate_after(true), 0.5);

  Accelerator accelerator;
  SavedNet net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [optimizer, scheduler] = accelerator.prepare(sgd, torch::optim::ReduceLROnPlateauScheduler(sgd));
  EXPECT_EQ(thrown_id([&] { accelerator.save_state(folder.path() / "plateau"); }), "MU241");
}

TEST(Saving, FabricSavesByNameAndReturnsWhatNobodyAskedFor) {
  const TemporaryFolder folder;
  Fabric fabric;
  SavedNet net;
  auto [model, optimizer] = fabric.setup(net, torch::optim::AdamW(net->parameters()));
  int64_t epoch = 3;
  std::string name = "run";
  fabric.save(folder.path() / "saved",
              {{"model", model}, {"optimizer", optimizer}, {"epoch", epoch}, {"name", name}, {"extra", 2.5}},
              {{"model", [](const std::string& key, const State&) { return key != "a.bias"; }}});
  const auto weight = net->b->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    net->b->weight.zero_();
  }
  epoch = 0;
  EXPECT_EQ(thrown_id([&] {
              fabric.load(folder.path() / "saved", {{"model", model}});
            }),
            "MU240");  // a.bias was left out
  const auto rest =
      fabric.load(folder.path() / "saved", {{"model", model}, {"epoch", epoch}, {"missing", name}}, {.strict = false});
  EXPECT_EQ(epoch, 3);
  EXPECT_TRUE(at::equal(net->b->weight, weight));
  ASSERT_EQ(rest.map().size(), 3U);
  EXPECT_EQ(rest.at("extra").number(), 2.5);
  EXPECT_EQ(rest.at("name").text(), "run");
  EXPECT_EQ(thrown_id([&] { fabric.load(folder.path() / "saved", {{"missing", name}}); }), "MU209");
  EXPECT_EQ(thrown_id([&] { fabric.load(folder.path() / "saved", {{"epoch", 4}}); }), "MU245");
  EXPECT_EQ(thrown_id([&] { fabric.save(folder.path() / "saved", {{"epoch", 4}}, {{"model", {}}}); }), "MU246");
}

TEST(Saving, FabricLoadsRawWeights) {
  const TemporaryFolder folder;
  Fabric fabric;
  SavedNet net, other;
  auto model = fabric.setup(net);
  save_weights(weights_of(*other), folder.path() / "weights");
  fabric.load_raw(folder.path() / "weights", model);
  EXPECT_TRUE(equal(values_of(net), values_of(other)));
  SavedNet third;
  save_python(state_dict(*third), folder.path() / "weights.pt");
  fabric.load_raw(folder.path() / "weights.pt", model);
  EXPECT_TRUE(equal(values_of(net), values_of(third)));
}

TEST(Saving, AnotherPrecisionOrOpenWindowIsRefused) {
  const TemporaryFolder folder;
  SavedNet net;
  {
    Accelerator accelerator({.mixed_precision = "fp16"});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.save_state(folder.path() / "scaled");
  }
  {
    Accelerator accelerator({.gradient_accumulation_steps = 3});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto window = accelerator.accumulate(model);
    accelerator.save_state(folder.path() / "open");
  }
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_NE(thrown([&] { accelerator.load_state(folder.path() / "scaled"); }).find("without it"), std::string::npos);
  EXPECT_NE(thrown([&] { accelerator.load_state(folder.path() / "open"); }).find("MU240"), std::string::npos);
}

}  // namespace
}  // namespace muster::saving
