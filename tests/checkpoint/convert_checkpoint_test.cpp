#include <gtest/gtest.h>
#include <torch/torch.h>

#include "format/checks.h"
#include "format/convert.h"
#include "format/stored_content.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/python.h"

namespace muster {
namespace {

using checks::expect_error;
using checks::ScratchFolder;

const ConvertOptions kAtOnce{.durability = Durability::none};

State job(int models) {
  State::List all, optimizers;
  for (int i = 0; i < models; ++i)
    all.emplace_back(State::Map{
        {"class", "Net"},
        {"weights", State::Map{{"fc.weight", torch::full({2, 3}, i + 1.5)}, {"fc.bias", torch::arange(2)}}}});
  optimizers.emplace_back(State::Map{
      {"inner",
       State::Map{{"state", State::Map{{"0", State::Map{{"step", 7}, {"exp_avg", torch::ones(3)}}}}},
                  {"param_groups", State::List{State::Map{{"lr", 0.1}, {"betas", State::List{0.9, 0.99}}}}}}}});
  return State::Map{{"models", all}, {"optimizers", optimizers}, {"window", State::Map{{"micro_batches", 0}}}};
}

std::filesystem::path written(const ScratchFolder& folder, const State& shared, std::vector<TensorShard> shards = {}) {
  return write_checkpoint(
      {.shared = shared, .per_rank = State::Map{{"random", std::string("\xff\0", 2)}}, .shards = std::move(shards)},
      folder / "run", {}, {.durability = Durability::none});
}

TEST(ConvertCheckpointTest, ATorchFileHasModelAndOptimizerAsPythonWould) {
  ScratchFolder folder;
  format::convert(written(folder, job(1)), folder / "x.pt", kAtOnce);
  const State state = load_python(folder / "x.pt");
  EXPECT_TRUE(identical(state.at("model"), job(1).at("models").list()[0].at("weights")));
  EXPECT_TRUE(identical(state.at("optimizer"), job(1).at("optimizers").list()[0].at("inner")));
  EXPECT_EQ(state.map().size(), 2u);
  const auto content = format::open_content(folder / "x.pt");
  EXPECT_EQ(content.content.value.find("optimizer")->find("state")->entries[0].first.kind,
            format::PythonValue::Kind::integer);
}

TEST(ConvertCheckpointTest, SafetensorsHaveTheWeightsOfOneModel) {
  ScratchFolder folder;
  format::convert(written(folder, job(1)), folder / "x.safetensors", kAtOnce);
  EXPECT_TRUE(torch::equal(load_file(folder / "x.safetensors").at("fc.weight"), torch::full({2, 3}, 1.5)));
  const auto two = written(folder, job(2));
  expect_error<CheckpointError>("MU229", "several models, choose one by its number from 0: model_0, model_1",
                                [&] { format::convert(two, folder / "y.safetensors", kAtOnce); });
  format::convert(two, folder / "y.safetensors", {.durability = Durability::none, .model = 1});
  EXPECT_TRUE(torch::equal(load_file(folder / "y.safetensors").at("fc.weight"), torch::full({2, 3}, 2.5)));
  expect_error<CheckpointError>("MU229", "no model 2", [&] { format::convert(two, folder / "z.pt", {.model = 2}); });
  format::convert(two, folder / "z.pt", kAtOnce);
  EXPECT_EQ(load_python(folder / "z.pt").map()[1].first, "model_1");
}

TEST(ConvertCheckpointTest, NamesGivenToSaveStay) {
  ScratchFolder folder;
  const State shared =
      State::Map{{"net", State::Map{{"w", torch::ones(2)}}}, {"opt", job(1).at("optimizers").list()[0]}, {"epoch", 4}};
  format::convert(written(folder, shared), folder / "x.pt", kAtOnce);
  const State state = load_python(folder / "x.pt");
  EXPECT_EQ(state.at("epoch").integer(), 4);
  EXPECT_EQ(state.at("opt").at("state").at("0").at("step").integer(), 7);
  format::convert(folder / "run", folder / "x.safetensors", kAtOnce);
  EXPECT_TRUE(torch::equal(load_file(folder / "x.safetensors").at("w"), torch::ones(2)));
}

TEST(ConvertCheckpointTest, PartsAndSlicesAreFound) {
  ScratchFolder folder;
  const auto whole = torch::arange(6.0f).view({2, 3});
  const auto run = written(folder, job(1),
                           {{.name = "w", .shape = {2, 3}, .begin = 2, .local = whole.view(-1).slice(0, 2)},
                            {.name = "w", .shape = {2, 3}, .begin = 0, .local = whole.view(-1).slice(0, 0, 2)}});
  format::convert(run, folder / "x.safetensors", {.durability = Durability::none, .part = "sliced"});
  EXPECT_TRUE(torch::equal(load_file(folder / "x.safetensors").at("w"), whole));
  format::convert(run, folder / "own.pt", {.durability = Durability::none, .part = "own/0"});
  EXPECT_EQ(load_python(folder / "own.pt").at("random").text(), std::string("\xff\0", 2));
}

TEST(ConvertCheckpointTest, WeightsThatAreSpreadOverRanksAreWhole) {
  ScratchFolder folder;
  const auto weight =
      torch::arange(24.0f).view({2, 3, 4}).permute({2, 0, 1});  // lies in memory as its dimensions 1, 2, 0
  const State shared = State::Map{
      {"net", State::Map{{"w", State::Map{{"sliced", "s"}, {"order", State::List{1, 2, 0}}}}, {"b", torch::ones(2)}}}};
  const auto run =
      written(folder, shared, {{.name = "s", .shape = {2, 3, 4}, .begin = 0, .local = torch::arange(24.0f)}});
  format::convert(run, folder / "x.safetensors", kAtOnce);
  EXPECT_TRUE(torch::equal(load_file(folder / "x.safetensors").at("w"), weight));
  format::convert(run, folder / "x.pt", kAtOnce);
  EXPECT_TRUE(torch::equal(load_python(folder / "x.pt").at("net").at("w").tensor(), weight));
  const auto lost = written(folder, shared);
  expect_error<CheckpointError>("MU213", "'s'", [&] { format::convert(lost, folder / "y.pt", kAtOnce); });
}

TEST(ConvertCheckpointTest, TornFoldersAreRefused) {
  ScratchFolder folder;
  const auto run = written(folder, job(1));
  const auto index = run / "rank-00000.json";
  std::string text = checks::read(index);
  text[text.find("Net")] = 'M';
  checks::write(index, text);
  expect_error<CheckpointError>("MU213", "not the file that the manifest knows", [&] { format::open_content(run); });
  std::filesystem::remove(index);
  expect_error<CheckpointError>("MU200", "rank-00000.json", [&] { format::open_content(run); });
}

}  // namespace
}  // namespace muster
