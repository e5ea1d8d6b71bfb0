#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/python.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/fabric.h"
#include "muster/optim/averaging.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

// Bare weights into a model, under every way to cut it: all ranks have what the file holds, and train on from it with
// the optimizer they had.
namespace muster::loads {
namespace {

namespace fs = std::filesystem;
using testing::thrown_id;

const std::vector<std::string> kWays{"ddp", "zero1", "zero2", "fsdp", "hsdp"};

/// Sizes that are no multiples of anything, a tied weight, a buffer, and one weight that is copied as bytes where that
/// is possible.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(first(x)).matmul(tied) * scale; }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(300, 301))};
  torch::Tensor scale = register_buffer("scale", torch::full({1}, 0.5));
  torch::Tensor tied = register_parameter("tied", first->weight);
};
TORCH_MODULE(Net);

Net make(uint64_t seed = 4) {
  torch::manual_seed(seed);
  return {};
}

torch::Tensor inputs(int step, int rank) {
  return torch::cos(torch::arange(1200, torch::kFloat) * (step + 2) + 5 * rank).view({4, 300});
}

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

void expect_bits(const Weights& actual, const Weights& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(actual[i].second, expected[i].second), "")
        << where << ", " << actual[i].first;
}

struct Course {
  explicit Course(const std::string& strategy)
      : accelerator({.strategy = Strategy(strategy.c_str())}), net(make()), model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(torch::optim::Adam(net->parameters(), 1e-2))) {}
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      accelerator.backward(model(inputs(step++, accelerator.process_index())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  Weights weights() const {
    Weights values;
    for (auto& [name, value] : model.prepared()->managed->full_state(false)) values.emplace_back(name, value.clone());
    return values;
  }
  /// One file or several, of safetensors or of Python; returns the path to load.
  fs::path save(const std::string& form, const fs::path& folder) {
    const auto path = folder / form;
    if (form == "one") accelerator.save_model(model, path);
    if (form == "several") accelerator.save_model(model, path, {.max_shard_size = 100'000});
    if (form == "torch.pt" || form == "python.pth")
      accelerator.summon_full_params(model, [&] {
        if (!accelerator.is_main_process()) return;
        if (form == "torch.pt") {
          auto plain = make();
          load_state_dict(*plain, state_dict(*net));
          torch::save(plain, path.string());
        } else save_python(state_dict(*net), path);
      });
    accelerator.wait_for_everyone();
    return path;
  }

  Accelerator accelerator;
  Net net;
  Model<NetImpl> model;
  Optimizer optimizer;
  int step = 0;
};

/// What the weights are after a step from the best ones, which were put back by hand.
Weights by_hand() {
  Course course("ddp");
  course.train(2);
  const auto best = course.weights();
  course.train(2);
  State::Map state;
  for (const auto& [name, value] : best) state.emplace_back(name, value);
  load_state_dict(*course.net, state);
  course.train(1);
  return course.weights();
}

void give_back(const std::string& way, const std::string& form, const fs::path& folder, const Weights& wanted) {
  Course course(way);
  course.train(2);
  const auto path = course.save(form, folder / way);
  const auto best = course.weights();
  course.train(2);
  const auto report = course.accelerator.load_model(course.model, path);
  EXPECT_TRUE(report.missing_keys.empty() && report.unexpected_keys.empty());
  expect_bits(course.weights(), best, way + ", " + form);
  course.train(1);
  expect_bits(course.weights(), wanted, way + ", " + form + ", a step later");
}

TEST(LoadModel, GivesTheBestWeightsBackUnderEveryStrategy) {
  for (const int ranks : {1, 2, 3})
    testing::as_ranks(
        ranks,
        [] {
          const Accelerator first;
          const auto folder = testing::shared_folder(first.group());
          if (first.is_main_process())
            for (const auto& way : kWays) fs::create_directories(folder.path() / way);
          const auto wanted = by_hand();
          for (const auto& way : kWays)
            for (const char* form : {"one", "several", "torch.pt", "python.pth"})
              give_back(way, form, folder.path(), wanted);
          first.wait_for_everyone();
        },
        std::to_string(ranks));
}

TEST(LoadModel, FillsAModuleBeforeItIsPreparedAndTheModuleOfAPreparedOne) {
  testing::as_ranks(2, [] {
    for (const auto& way : kWays) {
      Fabric fabric({.strategy = Strategy(way.c_str())});
      fabric.launch();
      const auto folder = testing::shared_folder(fabric.group());
      const auto other = make(77), another = make(78);
      if (fabric.is_global_zero())
        save_weights(weights_of(*other), folder.path() / "a"), save_weights(weights_of(*another), folder.path() / "b");
      fabric.barrier();
      auto net = make(fabric.global_rank());
      fabric.load_model(net, folder.path() / "a");
      EXPECT_TRUE(torch::equal(net->first->weight, other->first->weight));
      const auto model = fabric.setup(net);
      fabric.load_model(*net, folder.path() / "b");
      for (auto& [name, value] : model.prepared()->managed->full_state(false))
        EXPECT_TRUE(!(name == "first.weight") || torch::equal(value, another->first->weight)) << way;
      fabric.barrier();
    }
  });
}

TEST(LoadModel, ConvertsToTheDtypesOfTheModel) {
  testing::as_ranks(2, [] {
    for (const auto& way : kWays) {
      Course course(way);
      const auto folder = testing::shared_folder(course.accelerator.group());
      auto low = make(77), high = make(78);
      low->to(torch::kBFloat16);
      high->to(torch::kDouble);
      if (course.accelerator.is_main_process())
        save_weights(weights_of(*low), folder.path() / "low"),
            save_python(state_dict(*high), folder.path() / "high.pt");
      course.accelerator.wait_for_everyone();
      for (const auto& [path, from] : {std::pair{folder.path() / "low", low}, {folder.path() / "high.pt", high}}) {
        course.accelerator.load_model(course.model, path);
        for (const auto& [name, value] : course.weights()) {
          EXPECT_EQ(value.scalar_type(), torch::kFloat);
          EXPECT_TRUE(!(name == "first.weight") || torch::equal(value, from->first->weight.to(torch::kFloat))) << way;
        }
      }
      course.accelerator.wait_for_everyone();
    }
  });
}

/// Calls f, which must fail on every rank with this id and these words, and leave the model as it was.
void expect_refused(Course& course, const std::string& id, const std::vector<std::string>& words,
                    const std::function<void()>& f) {
  const auto before = course.weights();
  std::string message;
  try {
    f();
  } catch (const std::exception& error) {
    message = error.what();
  }
  EXPECT_EQ(message.substr(0, 5), id) << message;
  for (const auto& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  expect_bits(course.weights(), before, id);
}

TEST(LoadModel, ListsNamesThatOnlyOneSideHas) {  // MU228
  testing::as_ranks(2, [] {
    for (const auto& way : kWays) {
      Course course(way);
      const auto folder = testing::shared_folder(course.accelerator.group());
      const auto path = folder.path() / "state.pt", shaped = folder.path() / "shaped.pt",
                 named = folder.path() / "named.pt";
      const auto other = make(77);
      State::Map state, prefixed;
      for (const auto& [name, value] : weights_of(*other)) {
        if (name != "first.bias") state.emplace_back(name, value.detach());
        prefixed.emplace_back("module." + name, value.detach());
      }
      state.emplace_back("extra", torch::ones(2));
      if (course.accelerator.is_main_process()) {
        save_python(state, path);
        save_python(State::Map{{"first.bias", torch::ones({2})}, {"first.weight", 3}}, shaped);
        save_python(prefixed, named);
      }
      course.accelerator.wait_for_everyone();
      SCOPED_TRACE(way);
      expect_refused(course, "MU228", {path.string(), "first.bias", "extra"},
                     [&] { course.accelerator.load_model(course.model, path); });
      expect_refused(course, "MU228", {"[2]", "[301]", "first.weight"},
                     [&] { course.accelerator.load_model(course.model, shaped, {.strict = false}); });
      expect_refused(course, "MU228", {".prefix = \"module.\""},
                     [&] { course.accelerator.load_model(course.model, named); });
      const auto report = course.accelerator.load_model(course.model, path, {.strict = false});
      EXPECT_EQ(report.missing_keys, std::vector<std::string>{"first.bias"});
      EXPECT_EQ(report.unexpected_keys, std::vector<std::string>{"extra"});
      course.accelerator.load_model(course.model, named, {.prefix = "module."});
      for (const auto& [name, value] : course.weights())
        EXPECT_TRUE(!(name == "first.bias") || torch::equal(value, other->first->bias)) << way;
      course.accelerator.wait_for_everyone();
    }
  });
}

TEST(LoadModel, TakesTheOnlyDictionaryOfTensors) {  // MU228
  testing::as_ranks(2, [] {
    Course course("fsdp");
    const auto folder = testing::shared_folder(course.accelerator.group());
    const auto other = make(77);
    const auto weights = state_dict(*other);
    const State options = State::Map{{"lr", 0.1}};
    if (course.accelerator.is_main_process()) {
      save_python(State::Map{{"epoch", 3}, {"model", weights}, {"optimizer", State::Map{{"state", options}}}},
                  folder.path() / "one.pt");
      save_python(State::Map{{"model", weights}, {"average", weights}}, folder.path() / "two.pt");
    }
    course.accelerator.wait_for_everyone();
    expect_refused(course, "MU228", {"average", "model"},
                   [&] { course.accelerator.load_model(course.model, folder.path() / "two.pt"); });
    course.accelerator.load_model(course.model, folder.path() / "one.pt");
    for (const auto& [name, value] : course.weights())
      EXPECT_TRUE(!(name == "first.bias") || torch::equal(value, other->first->bias));
    course.accelerator.wait_for_everyone();
  });
}

void cut(const fs::path& from, const fs::path& to, double share) {
  std::ifstream file(from, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::ofstream(to, std::ios::binary) << bytes.substr(0,
                                                      static_cast<size_t>(static_cast<double>(bytes.size()) * share));
}

TEST(LoadModel, DamagedFilesAreNamedOnAllRanksAndChangeNothing) {  // MU200 MU201 MU225
  for (const int ranks : {1, 3})
    testing::as_ranks(
        ranks,
        [] {
          for (const char* way : {"ddp", "zero2", "fsdp"}) {
            Course course(way);
            const auto shared = testing::shared_folder(course.accelerator.group());
            const auto folder = shared.path();
            const auto other = make(77);
            if (course.accelerator.is_main_process()) {
              save_file(weights_of(*other), folder / "whole.safetensors");
              save_python(state_dict(*other), folder / "whole.pt");
              for (const double share : {0.0, 0.001, 0.9}) {
                cut(folder / "whole.safetensors", folder / (std::to_string(share) + ".safetensors"), share);
                if (share > 0.0) cut(folder / "whole.pt", folder / (std::to_string(share) + ".pt"), share);
              }
              std::ofstream(folder / "text.pt") << "PK\3\4 is how an archive begins, and this is none";
              fs::create_directories(folder / "empty");
            }
            course.accelerator.wait_for_everyone();
            const auto refused = [&](const std::string& id, const fs::path& path) {
              expect_refused(course, id, {path.filename().string()},
                             [&] { course.accelerator.load_model(course.model, path); });
            };
            for (const double share : {0.0, 0.001, 0.9}) {
              refused("MU201", folder / (std::to_string(share) + ".safetensors"));
              if (share > 0.0) refused("MU225", folder / (std::to_string(share) + ".pt"));
            }
            refused("MU225", folder / "text.pt");
            refused("MU200", folder / "empty");
            refused("MU200", folder / "gone");
            course.train(1);
            course.accelerator.wait_for_everyone();
          }
        },
        std::to_string(ranks));
}

TEST(LoadModel, WhatOneRankAloneSeesIsAnErrorOnAllRanks) {  // MU201 MU250
  testing::as_ranks(3, [] {
    for (const char* way : {"ddp", "zero1", "fsdp"}) {
      Course course(way);
      const auto folder = testing::shared_folder(course.accelerator.group());
      const bool odd = course.accelerator.process_index() == 1;
      if (course.accelerator.is_main_process()) {
        save_file(weights_of(*make(77)), folder.path() / "a.safetensors");
        save_file(weights_of(*make(78)), folder.path() / "b.safetensors");
        cut(folder.path() / "a.safetensors", folder.path() / "cut.safetensors", 0.5);
      }
      course.accelerator.wait_for_everyone();
      expect_refused(course, "MU201", {"cut.safetensors"}, [&] {
        course.accelerator.load_model(course.model, folder.path() / (odd ? "cut.safetensors" : "a.safetensors"));
      });
      expect_refused(course, "MU250", {"rank 1"}, [&] {
        course.accelerator.load_model(course.model, folder.path() / (odd ? "b.safetensors" : "a.safetensors"));
      });
      course.train(1);
      course.accelerator.wait_for_everyone();
    }
  });
}

TEST(LoadModel, LeavesAveragesAlone) {
  testing::as_ranks(2, [] {
    std::vector<Weights> seen;
    for (const auto& way : kWays) {
      Course course(way);
      const auto folder = testing::shared_folder(course.accelerator.group());
      if (course.accelerator.is_main_process()) save_weights(weights_of(*make(77)), folder.path());
      course.accelerator.wait_for_everyone();
      AveragedModel average(course.model, {.decay = 0.6});
      course.train(1);
      average.update();
      const auto lent = [&] { return average.use([&] { return course.weights(); }); };
      const auto before = lent();
      course.accelerator.load_model(course.model, folder.path());
      const auto loaded = course.weights();
      expect_bits(lent(), before, way);
      expect_bits(course.weights(), loaded, way);
      course.train(1);
      average.update();
      seen.push_back(lent());
      expect_bits(seen.back(), seen.front(), way);
      course.accelerator.wait_for_everyone();
    }
  });
}

/// LibTorch's own way gives parameters other memory; the error says what to call.
TEST(LoadModel, IsNamedWhereTorchLoadIsRefused) {  // MU156 MU162
  testing::as_ranks(2, [] {
    for (const auto& [way, id] :
         {std::pair{"ddp", "MU156"}, {"zero1", "MU162"}, {"zero2", "MU162"}, {"fsdp", "MU162"}}) {
      Course course(way);
      const auto folder = testing::shared_folder(course.accelerator.group());
      const auto path = (folder.path() / "best.pt").string();
      if (course.accelerator.is_main_process()) torch::save(make(77), path);
      course.accelerator.wait_for_everyone();
      std::string message;
      try {
        torch::load(course.net, path);
        course.model(inputs(0, 0));
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_EQ(message.substr(0, 5), id) << way << ": " << message;
      EXPECT_NE(message.find("load_model(model, path)"), std::string::npos) << message;
      course.accelerator.wait_for_everyone();
    }
  });
}

}  // namespace
}  // namespace muster::loads
