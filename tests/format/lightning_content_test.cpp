#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/checkpoint/stored_checkpoint.h"
#include "format/convert.h"
#include "python_values.h"

namespace muster::format::lightning_test {
namespace {

using Kind = PythonValue::Kind;

PythonValue map_of(std::vector<std::pair<const char*, PythonValue>> entries) {
  PythonValue map;
  map.kind = Kind::map;
  for (auto& [name, value] : entries) map.entries.push_back({PythonValue::of_text(name), std::move(value)});
  return map;
}

PythonValue list_of(std::vector<PythonValue> items) {
  PythonValue list;
  list.kind = Kind::list;
  list.items = std::move(items);
  return list;
}

PythonValue number(std::int64_t value) { return PythonValue::of_integer(value); }

/// A checkpoint folder with one model, of which `batches` of an epoch were made after `epochs` epochs.
StoredContent saved_by_a_trainer(std::int64_t epochs, std::int64_t batches, std::vector<PythonValue> schedulers) {
  StoredContent stored;
  stored.is_checkpoint = true;
  stored.content.tensors.resize(1);
  stored.content.value = map_of(
      {{"shared", map_of({{"models", list_of({map_of({{"weights", map_of({{"w", PythonValue::of_tensor(0)}})}})})},
                          {"optimizers", list_of({map_of({{"inner", map_of({{"state", map_of({})}})}})})},
                          {"schedulers", list_of(std::move(schedulers))},
                          {"trainer", map_of({{"batches", number(batches)},
                                              {"epoch", number(epochs)},
                                              {"global_step", number(7)},
                                              {"hyper_parameters", map_of({{"width", number(3)}})},
                                              {"total_batches", number(9)}})}})},
       {"sliced", map_of({})}});
  return stored;
}

/// The value at a path of names.
const PythonValue& at(const PythonValue& value, const std::vector<const char*>& path) {
  const PythonValue* found = &value;
  for (const char* name : path) {
    found = found->find(name);
    if (!found) throw std::runtime_error(std::string("there is no ") + name);
  }
  return *found;
}

std::int64_t epoch_counter(const PythonValue& file, const char* name) {
  return at(file, {"loops", "fit_loop", "epoch_progress", "current", name}).integer;
}

TEST(LightningContent, TheEndOfAnEpochIsAsLightningSavesIt) {
  auto stored = saved_by_a_trainer(2, 0, {});
  ASSERT_TRUE(is_trainers(stored));
  const auto file = lightning_value(map_of({{"w", PythonValue::of_tensor(0)}}), lightning_parts(stored));
  EXPECT_EQ(at(file, {"epoch"}).integer, 1);
  EXPECT_EQ(at(file, {"global_step"}).integer, 7);
  EXPECT_EQ(epoch_counter(file, "processed"), 2);
  EXPECT_EQ(epoch_counter(file, "completed"), 1);
  EXPECT_EQ(at(file, {"state_dict", "w"}).kind, Kind::tensor);
  EXPECT_EQ(at(file, {"hyper_parameters", "width"}).integer, 3);
  EXPECT_EQ(at(file, {"hparams_name"}).text, "kwargs");
  EXPECT_EQ(at(file, {"optimizer_states"}).items.size(), 1u);
  EXPECT_EQ(at(file, {"lr_schedulers"}).kind, Kind::list);
  const auto* step =
      at(file, {"loops", "fit_loop", "epoch_loop.automatic_optimization.optim_progress"}).find("optimizer");
  ASSERT_TRUE(step);
  EXPECT_EQ(at(*step, {"step", "total", "completed"}).integer, 7);
}

TEST(LightningContent, AnEpochThatHasBegunBeginsAgain) {
  auto stored = saved_by_a_trainer(2, 3, {});
  const auto file = lightning_value(map_of({}), lightning_parts(stored));
  EXPECT_EQ(at(file, {"epoch"}).integer, 2);
  EXPECT_EQ(epoch_counter(file, "ready"), 2);
  EXPECT_EQ(epoch_counter(file, "completed"), 2);
}

TEST(LightningContent, NextToSchedulesOptimizersStatesAreLeftOut) {
  auto stored = saved_by_a_trainer(1, 0, {map_of({})});
  const auto file = lightning_value(map_of({}), lightning_parts(stored));
  EXPECT_FALSE(file.find("optimizer_states"));
  EXPECT_FALSE(file.find("lr_schedulers"));
}

TEST(LightningContent, WeightsOfAnythingElseGetCountersOfNothing) {
  const checks::ScratchFolder folder;
  const auto report = convert(checks::python_file("zip.pt"), folder / "x.ckpt",
                              {.durability = Durability::none, .part = "state_dict", .to = WeightForm::lightning});
  EXPECT_EQ(report.tensors, 5u);
  const auto file = read_python_file(format::InputFile(folder / "x.ckpt")).value;
  EXPECT_EQ(at(file, {"global_step"}).integer, 0);
  EXPECT_EQ(epoch_counter(file, "completed"), 0);
  EXPECT_EQ(at(file, {"state_dict", "row"}).kind, Kind::tensor);
  EXPECT_FALSE(file.find("hyper_parameters"));
  checks::expect_error<CheckpointError>("MU229", "needs the weights of a model", [&] {
    convert(checks::python_file("zip.pt"), folder / "y.ckpt",
            {.durability = Durability::none, .part = "optimizer", .to = WeightForm::lightning});
  });
}

}  // namespace
}  // namespace muster::format::lightning_test
