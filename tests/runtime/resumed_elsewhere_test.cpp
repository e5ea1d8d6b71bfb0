// A run that is saved under one strategy, world and precision, and resumed under another strategy or world, ends with
// the numbers of the run that was not interrupted.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/data/loader.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster::resumed_elsewhere {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

constexpr int kEpochs = 2, kBatchesPerEpoch = 5, kWindow = 3;  // so the second window of an epoch is short
constexpr int64_t kSamplesPerBatch = 6;                        // of all ranks together

/// How gradients are accumulated.
enum class Way { windows, communicated_windows, no_sync };
constexpr const char* kWays[] = {"windows", "windows that communicate each batch", "no_sync"};

/// Where a run is saved: after a batch, or between its backward and what follows: clipping, and the step if it has one.
struct Place {
  int batch = 0;
  bool inside = false;
};

struct Course {
  Way way = Way::windows;
  std::string precision, strategy;
  int world = 1;

  bool steps_after(int batch) const {
    if (way == Way::no_sync) return batch % 2 == 1;
    const int in_epoch = batch % kBatchesPerEpoch;
    return (in_epoch + 1) % kWindow == 0 || in_epoch + 1 == kBatchesPerEpoch;
  }
  std::string text() const {
    return kWays[static_cast<int>(way)] + (", " + precision) + ", " + strategy + " at " + std::to_string(world) +
           " ranks";
  }
  /// The first window, a full one, a short one, and those of a later epoch; before a step and after it.
  std::vector<Place> places() const {
    if (way == Way::no_sync) return {{0, true}, {0, false}, {1, true}, {1, false}};
    return {{0, false}, {2, true}, {2, false}, {3, false}, {4, true}, {8, false}};
  }
};

struct Setting {
  Course from;
  Place place;
  std::string strategy;  // that resumes
  int world = 1;

  bool same_world() const { return world == from.world; }
  /// Ranks have gradients of their own, and no window that could run again.
  bool refused() const {
    return from.way == Way::no_sync && !from.steps_after(place.batch) && from.world > 1 && !same_world();
  }
  std::string text() const {
    return from.text() + ", saved " + (place.inside ? "inside" : "after") + " batch " + std::to_string(place.batch) +
           ", resumed under " + strategy + " at " + std::to_string(world) + " ranks";
  }
};

/// With parameters that are frozen, empty, or without dimensions.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const torch::NoGradGuard no_grad;
    int i = 1;  // so that no parameter is zero
    for (auto& parameter : parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kFloat) * 1.3 + i++).view_as(parameter) * 0.5);
    frozen->weight.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x)) + frozen(x)) * factor + nothing.sum(); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 70))},
      frozen{register_module("frozen", torch::nn::Linear(torch::nn::LinearOptions(6, 70).bias(false)))},
      out{register_module("out", torch::nn::Linear(70, 1))};
  Tensor factor{register_parameter("factor", torch::ones({}))},
      nothing{register_parameter("nothing", torch::ones({0}))};
};
TORCH_MODULE(Net);

struct Points {
  std::tuple<Tensor, Tensor> get(int64_t i) const {
    const auto x = torch::cos(torch::arange(6, torch::kFloat) * 0.7 + 1.1 * static_cast<double>(i));
    return {x, x.sum().sin().view({1})};
  }
  int64_t size() const { return kBatchesPerEpoch * kSamplesPerBatch; }
};

fs::path folder_of(const fs::path& root, const Course& course, const Place& place) {
  return root / course.text() / (std::to_string(place.batch) + (place.inside ? "_inside" : "_after"));
}
std::string result_of(const fs::path& root, const Course& course) { return (root / course.text() / "end.pt").string(); }

AcceleratorOptions options_of(const Course& course) {
  return {.grad_scaler = {.growth_interval = 3, .init_scale = 64},
          .gradient_accumulation = {.num_steps = course.way == Way::no_sync ? 1 : kWindow,
                                    .sync_each_batch = course.way == Way::communicated_windows},
          .mixed_precision = Precision::parse(course.precision),
          .strategy = Strategy::parse(course.strategy)};
}

/// The program of a rank. `save`: called at each place. `from`: goes on from there, after what `load` loads.
template <class Save, class Load>
std::vector<Tensor> train(const Course& course, const Save& save, const std::optional<Place>& from, const Load& load) {
  Accelerator accelerator(options_of(course));
  Net net;
  // Its steps depend on the size of gradients nearly as SGD's do, and it has state.
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.2).eps(1)),
                          DataLoader(Points(), {.batch_size = kSamplesPerBatch, .split_batches = true}));
  const auto end_batch = [&, &model = model, &optimizer = optimizer](int batch) {
    if (course.way == Way::no_sync && !course.steps_after(batch)) return;
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
  };
  int batch = 0;
  if (from) {
    load(accelerator);
    if (from->inside && course.steps_after(from->batch)) end_batch(from->batch);
    batch = from->batch + 1;
  }
  const auto run_batch = [&, &model = model](const Tensor& x, const Tensor& y) {
    accelerator.backward(torch::mse_loss(model(x).to(torch::kFloat), y));
    save(accelerator, Place{batch, true});
    end_batch(batch);
  };
  for ([[maybe_unused]] const auto epoch : accelerator.epochs(kEpochs))
    for (auto& [x, y] : batches) {
      if (course.way == Way::no_sync) {
        const auto quiet = accelerator.no_backward_sync(model, !course.steps_after(batch));
        run_batch(x, y);
      } else {
        const auto window = accelerator.accumulate(model);
        run_batch(x, y);
      }
      save(accelerator, Place{batch, false});
      ++batch;
    }
  std::vector<Tensor> values;
  for (const auto& [name, value] : model.prepared()->managed->full_state(false)) values.push_back(value.clone());
  return values;
}

/// Runs the course to its end and saves in these places.
void save_course(const Course& course, const std::vector<Place>& places, const fs::path& root, bool main) {
  const auto save = [&](Accelerator& accelerator, const Place& now) {
    for (const auto& place : places)
      if (place.batch == now.batch && place.inside == now.inside)
        accelerator.save_state(folder_of(root, course, place), {.durability = Durability::none});
  };
  const auto end = train(course, save, {}, [](Accelerator&) {});
  if (main) torch::save(end, result_of(root, course));
}

void expect_resumed(const Setting& setting, const fs::path& root) {
  SCOPED_TRACE(setting.text());
  auto course = setting.from;
  course.strategy = setting.strategy;
  course.world = setting.world;
  const auto folder = folder_of(root, setting.from, setting.place);
  if (setting.refused()) {
    Accelerator accelerator(options_of(course));
    Net net;
    auto prepared = accelerator.prepare(net, torch::optim::AdamW(net->parameters()), DataLoader(Points(), {}));
    EXPECT_EQ(testing::thrown_id([&] { accelerator.load_state(folder); }), "MU584");
    return;
  }
  const auto end = train(
      course, [](Accelerator&, const Place&) {}, setting.place,
      [&](Accelerator& accelerator) { accelerator.load_state(folder); });
  std::vector<Tensor> whole;
  torch::load(whole, result_of(root, setting.from));
  ASSERT_EQ(end.size(), whole.size());
  const bool same = setting.same_world() && setting.strategy == setting.from.strategy;
  const double tolerance = course.precision == "no" ? 1e-5 : 2e-2;
  for (size_t i = 0; i < end.size(); ++i)
    EXPECT_EQ(same ? testing::difference_in_bits(end[i], whole[i])
                   : testing::difference(end[i], whole[i], tolerance, tolerance),
              "")
        << i;
}

std::vector<std::pair<std::string, int>> strategies() {
  std::vector<std::pair<std::string, int>> all{{"auto", 1}};  // that is none
  for (const int world : {1, 2, 3})
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) all.emplace_back(strategy, world);
  return all;
}

std::vector<Setting> whole_product() {
  std::vector<Setting> all;
  for (const auto way : {Way::windows, Way::communicated_windows, Way::no_sync})
    for (const char* precision : {"no", "bf16", "fp16", "bf16-true", "16-true"})
      for (const auto& [from, saved_world] : strategies()) {
        const Course course{way, precision, from, saved_world};
        for (const auto& place : course.places())
          for (const auto& [to, world] : strategies()) all.push_back({course, place, to, world});
      }
  return all;
}

constexpr unsigned kSeed = 252;  // one whose sample has what once went wrong

/// All in the full run, a sample otherwise.
std::vector<Setting> settings() {
  auto all = whole_product();
  if (std::getenv("MUSTER_TEST_FULL")) return all;
  std::shuffle(all.begin(), all.end(), std::mt19937(kSeed));
  all.resize(60);
  return all;
}

void save_all(const std::vector<Setting>& settings, int world, const fs::path& root) {
  const Accelerator first;  // the ranks' meeting stays open while runtimes come and go
  std::set<std::string> done;
  for (const auto& setting : settings) {
    if (setting.from.world != world || !done.insert(setting.from.text()).second) continue;
    std::vector<Place> places;
    for (const auto& other : settings)
      if (other.from.text() == setting.from.text()) places.push_back(other.place);
    SCOPED_TRACE(setting.from.text());
    save_course(setting.from, places, root, first.is_main_process());
  }
}

/// At most so many settings are resumed by the same processes, because each Accelerator reads what all those before it
/// have written to the file in which ranks meet.
constexpr size_t kSettingsAtOnce = 200;

TEST(ResumedElsewhere, EndsInTheUninterruptedRunsNumbers) {
  const testing::InheritedFolder folder;
  const auto all = settings();
  std::cout << all.size() << " settings, seed " << kSeed << std::endl;
  const auto timeout = std::chrono::minutes(2);
  for (const int world : {1, 2, 3})
    testing::as_ranks(
        world, [&] { save_all(all, world, folder.path()); }, "save", timeout);
  for (const int world : {1, 2, 3}) {
    std::vector<Setting> own;
    std::ranges::copy_if(all, std::back_inserter(own), [&](const auto& setting) { return setting.world == world; });
    for (size_t i = 0; i < own.size(); i += kSettingsAtOnce) {
      const auto resume = [&] {
        const Accelerator first;
        for (size_t k = i; k < std::min(i + kSettingsAtOnce, own.size()); ++k) expect_resumed(own[k], folder.path());
      };
      testing::as_ranks(world, resume, "resume " + std::to_string(i), timeout);
    }
  }
}

/// A rank's job, whose steps a test makes one by one.
struct Job {
  explicit Job(const std::string& strategy, int micro_batches = 1)
      : accelerator({.gradient_accumulation_steps = micro_batches, .strategy = Strategy::parse(strategy)}) {
    std::tie(model, optimizer) =
        accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.2).eps(1)));
  }
  /// Of the rank's own batch with that number.
  void backward(int number) {
    const auto x = torch::cos(torch::arange(24, torch::kFloat) * 0.7 + number + 3 * accelerator.process_index());
    accelerator.backward(model(x.view({4, 6})).pow(2).mean());
  }
  void backward_without_sync(int number) {
    const auto quiet = accelerator.no_sync(model);
    backward(number);
  }
  std::vector<Tensor> step() {
    optimizer.step();
    std::vector<Tensor> values;
    for (const auto& [name, value] : model.prepared()->managed->full_state(false)) values.push_back(value.clone());
    return values;
  }
  void save(const fs::path& folder) { accelerator.save_state(folder, {.durability = Durability::none}); }

  Accelerator accelerator;
  Net net;
  Model<NetImpl> model;
  Optimizer optimizer;
};

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_EQ(testing::difference(actual[i], expected[i]), "") << i;
}

/// Calls f(strategy that saves, strategy that resumes, a folder) on two ranks.
void with_strategies(const std::function<void(const std::string&, const std::string&, const fs::path&)>& f) {
  testing::as_ranks(2, [&] {
    const Accelerator first;
    const auto folder = testing::shared_folder(first.group());
    for (const std::string from : {"ddp", "zero1", "zero2", "fsdp"})
      for (const std::string to : {"ddp", "zero1", "zero2", "fsdp"}) {
        SCOPED_TRACE(from + " to " + to);
        f(from, to, folder.path() / (from + "_" + to));
      }
  });
}

TEST(WaitingGradients, ReplaceThoseOfAProgramThatHasTrained) {
  with_strategies([](const std::string& from, const std::string& to, const fs::path& folder) {
    Job saved(from);
    saved.backward_without_sync(0);
    saved.save(folder / "own");
    saved.backward(1);
    saved.save(folder / "reduced");
    const auto expected = saved.step();
    for (const bool has_own : {true, false}) {
      Job resumed(to);
      resumed.backward(2);
      resumed.step();
      if (has_own) resumed.backward_without_sync(3);
      resumed.accelerator.load_state(folder / "own");
      resumed.backward(1);
      expect_close(resumed.step(), expected);
      if (has_own) resumed.backward_without_sync(3);
      resumed.accelerator.load_state(folder / "reduced");
      expect_close(resumed.step(), expected);
    }
  });
}

TEST(WaitingGradients, CountOnARankWithoutALossInTheRestOfTheWindow) {
  const std::string ddp = "ddp_find_unused_parameters_true";
  testing::as_ranks(2, [&] {
    const Accelerator first;
    const auto folder = testing::shared_folder(first.group());
    const auto end_window = [](Job& job) {
      const auto window = job.accelerator.accumulate(job.model);
      if (job.accelerator.process_index() == 0) job.backward(1);
      return job.step();
    };
    Job saved(ddp, 2);
    {
      const auto window = saved.accelerator.accumulate(saved.model);
      saved.backward(0);
    }
    saved.save(folder.path() / "state");
    const auto expected = end_window(saved);
    for (const auto& strategy : {ddp, std::string("zero1"), std::string("zero2")}) {
      SCOPED_TRACE(strategy);
      Job resumed(strategy, 2);
      resumed.accelerator.load_state(folder.path() / "state");
      expect_close(end_window(resumed), expected);
    }
  });
}

TEST(WaitingGradients, ThatAStepHasUsedAreNotSaved) {
  with_strategies([](const std::string& from, const std::string&, const fs::path& folder) {
    Job job(from);
    const auto saved = [&] {
      job.save(folder);
      const auto shared = Checkpoint(folder).shared();
      return shared.at("gradients").list().at(0).map().size() +
             shared.at("reduced_gradients").list().at(0).map().size();
    };
    job.backward(0);
    const auto parameters = job.net->parameters();
    const auto trained = static_cast<size_t>(
        std::ranges::count_if(parameters, [](const Tensor& parameter) { return parameter.requires_grad(); }));
    EXPECT_EQ(saved(), trained);
    job.step();
    EXPECT_EQ(saved(), 0u);
    job.backward(1);
    EXPECT_EQ(saved(), trained);
    job.optimizer.zero_grad();
    EXPECT_EQ(saved(), 0u);
  });
}

}  // namespace
}  // namespace muster::resumed_elsewhere
