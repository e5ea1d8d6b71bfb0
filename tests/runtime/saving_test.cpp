#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/fabric.h"
#include "muster/optim/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using testing::thrown;
using testing::thrown_id;

struct SavedNetImpl : torch::nn::Module {
  explicit SavedNetImpl(int64_t width = 5)
      : a(register_module("a", torch::nn::Linear(3, width))), b(register_module("b", torch::nn::Linear(width, 1))) {}
  torch::nn::Linear a, b;
  at::Tensor forward(at::Tensor x) { return b(torch::tanh(a(x))); }
};
TORCH_MODULE(SavedNet);

struct Numbers {
  int64_t get(int64_t i) const { return i; }
  int64_t size() const { return 24; }
};

struct Note {
  std::string text;
  bool refuses = false;
  State save_state() const { return text; }
  void load_state(const State& state) {
    if (refuses) throw std::runtime_error("this object cannot be loaded");
    text = state.text();
  }
};

std::vector<at::Tensor> values_of(const SavedNet& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return a.size() == b.size();
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
  EXPECT_EQ(loader.position(), 3);
  second.refuses = false;
  accelerator.load_state(folder.path() / "saved");
  EXPECT_EQ(first.text, "first");
  EXPECT_EQ(loader.position(), 0);
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

/// Sums what the ranks saw until everything was seen.
std::vector<int64_t> seen_by_all(const Accelerator& accelerator, const std::vector<int64_t>& mine) {
  auto all = accelerator.gather_object(mine);
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Saving, AnotherNumberOfRanksGoesOnAtTheSameSample) {
  std::vector<int64_t> everything(24);
  for (int64_t i = 0; i < 24; ++i) everything[static_cast<size_t>(i)] = i;
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    const auto folder = fs::temp_directory_path() / ("muster-test-resize" + std::to_string(getppid()));
    SavedNet net;
    auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                                                          DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
    std::vector<int64_t> mine;
    for (auto& batch : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({2, 3})).mean());
      optimizer.step();
      optimizer.zero_grad();
      if (loader.position() <= 2)  // the third batch opens a window, and will run again
        for (int64_t i = 0; i < 2; ++i) mine.push_back(batch[i].item<int64_t>());
      if (loader.position() == 3) break;
    }
    const auto all = seen_by_all(accelerator, mine);
    accelerator.save_state(folder);
    if (accelerator.is_main_process()) {
      std::ofstream list(folder.string() + ".seen");
      for (const auto i : all) list << i << ' ';
    }
  });
  const auto made = fs::temp_directory_path() / ("muster-test-resize" + std::to_string(getpid()));
  ASSERT_TRUE(fs::exists(made));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  SavedNet net;
  auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                                                        DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
  accelerator.load_state(made);
  std::vector<int64_t> seen;
  std::ifstream list(made.string() + ".seen");
  for (int64_t i = 0; list >> i;) seen.push_back(i);
  EXPECT_EQ(seen.size(), 8U);
  for (auto& batch : loader)
    for (int64_t i = 0; i < 2; ++i) seen.push_back(batch[i].item<int64_t>());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, everything);
  fs::remove_all(made);
  fs::remove(made.string() + ".seen");
}

TEST(Saving, AnOpenWindowWithoutALoaderNeedsItsRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    SavedNet net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    auto window = accelerator.accumulate(model);
    accelerator.save_state(fs::temp_directory_path() / ("muster-test-window" + std::to_string(getppid())));
  });
  const auto made = fs::temp_directory_path() / ("muster-test-window" + std::to_string(getpid()));
  ASSERT_TRUE(fs::exists(made));
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  SavedNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  EXPECT_EQ(thrown_id([&] { accelerator.load_state(made); }), "MU242");
  fs::remove_all(made);
}

struct ShardedNetImpl : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(30, 70))},
      b{register_module("b", torch::nn::Linear(70, 30))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(70))};
  at::Tensor forward(at::Tensor x) {
    return torch::matmul(norm(torch::tanh(a(x))), b->weight.t());
  }  // b.bias is never used
  ShardedNetImpl() {
    const torch::NoGradGuard no_grad;
    b->bias.requires_grad_(false);
    a->weight.set_data(a->weight.t().contiguous().t());  // lies the other way round in memory
  }
};
TORCH_MODULE(ShardedNet);

/// Trains `before` steps, loads or saves, and trains on; returns all weights and the optimizer's step count.
std::vector<at::Tensor> sharded_course(Strategy strategy, int before, const fs::path& load, const fs::path& save,
                                       int after) {
  torch::manual_seed(3);
  Accelerator accelerator({.gradient_accumulation_steps = 2, .strategy = strategy});
  ShardedNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  if (!load.empty()) accelerator.load_state(load);
  const auto train = [&](int from, int count) {
    for (int step = from; step < from + count; ++step)
      for (int micro = 0; micro < 2; ++micro) {
        auto window = accelerator.accumulate(model);
        accelerator.backward(
            model(torch::cos(torch::arange(120, torch::kFloat) * (step + 2) + micro).view({4, 30})).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
  };
  train(load.empty() ? 0 : before, load.empty() ? before : 0);
  if (!save.empty()) accelerator.save_state(save);
  train(before, after);
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : model.prepared()->managed->full_state(false))
    weights.push_back(tensor.detach().clone());
  return weights;
}

TEST(Saving, ShardedStateGoesToAnyStrategyAndNumberOfRanks) {
  const auto at_test = [](pid_t test, const char* name) {
    return fs::temp_directory_path() / ("muster-test-sharded" + std::to_string(test) + name);
  };
  testing::as_ranks(2, [&] {
    const Accelerator first;
    const auto sharded = at_test(getppid(), "-fsdp"), whole = at_test(getppid(), "-ddp");
    const auto expected = sharded_course("fsdp", 2, {}, sharded, 2);
    EXPECT_TRUE(equal(sharded_course("ddp", 2, {}, whole, 2), expected));
    for (const auto& saved : {sharded, whole})
      for (const Strategy& strategy : {Strategy("fsdp"), Strategy("ddp")})
        EXPECT_TRUE(equal(sharded_course(strategy, 2, saved, {}, 2), expected)) << saved << ", " << strategy.name();
  });
  testing::as_ranks(
      3,
      [&] {
        const Accelerator first;
        const auto expected = sharded_course("ddp", 2, at_test(getppid(), "-ddp"), {}, 1);
        EXPECT_TRUE(equal(sharded_course("fsdp", 2, at_test(getppid(), "-fsdp"), {}, 1), expected));
      },
      "three");
  ASSERT_TRUE(fs::exists(at_test(getpid(), "-fsdp")));
  // The same data on every rank: one rank makes the same steps, to rounding.
  const auto from_sharded = sharded_course("auto", 2, at_test(getpid(), "-fsdp"), {}, 2);
  const auto from_whole = sharded_course("auto", 2, at_test(getpid(), "-ddp"), {}, 2);
  EXPECT_TRUE(equal(from_sharded, from_whole));
  for (const auto* name : {"-fsdp", "-ddp"}) fs::remove_all(at_test(getpid(), name));
}

}  // namespace
}  // namespace muster
