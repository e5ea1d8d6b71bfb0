#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/trainer/detail/main_call.h"
#include "muster/trainer_main.h"
#include "options/trainer_fields.h"
#include "trainer/main_program.h"

// A program of one line, and how its call is read.

namespace muster::trainer::testing {

struct Sizes {
  int64_t in = 3, out = 2;
};

struct Lit : TrainerModule {
  struct Options {
    std::optional<double> decay = {};
    std::string name = "plain";
    double rate = 0.1;
    Sizes sizes = {};
    bool smooth = false;
    std::vector<int64_t> steps = {};
    std::vector<std::string> words = {"a", "b"};
  };
  explicit Lit(const Options& given) : options(given) {}
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return batch.sum(); }
  void validation_step(torch::Tensor&, int64_t) {}
  Options options;
};

struct Data : DataModule {
  struct Options {
    float part = 0.5F;
    int rows = 8;
    uint8_t workers = 0;
  };
  explicit Data(const Options& given) : options(given) {}
  auto train_dataloader() const {
    return DataLoader([](int64_t i) { return torch::full({1}, i); }, options.rows);
  }
  auto val_dataloader() const { return train_dataloader(); }
  auto test_dataloader() const { return train_dataloader(); }
  Options options;
};

struct Read {
  MainCall call;
  Lit::Options model;
  Data::Options data;
};

using Words = std::vector<std::string>;

inline Read read(const Words& words, const Environment& variables = {}, const TrainerOptions& defaults = {}) {
  HeldOptions<Lit> model;
  HeldOptions<Data> data;
  Words all{"/somewhere/train"};
  all.insert(all.end(), words.begin(), words.end());
  auto call = read_main_call(all, main_program<Lit, Data>(model, data.fields(), defaults), variables);
  return {std::move(call), model.values, data.values};
}

inline Read accepted(const Words& words, const Environment& variables = {}, const TrainerOptions& defaults = {}) {
  auto result = read(words, variables, defaults);
  EXPECT_FALSE(result.call.exit_code) << result.call.error;
  return result;
}

/// The Trainer's own options, as it will see them.
inline TrainerOptions trainer_of(const Read& read) {
  return with_given_options(read.call.trainer, {{"MUSTER_OPTIONS", read.call.options_line}});
}

inline std::string refused(const Words& words, const Environment& variables = {}, const TrainerOptions& defaults = {}) {
  const auto result = read(words, variables, defaults);
  EXPECT_EQ(result.call.exit_code, 2) << result.call.output;
  EXPECT_EQ(result.call.output, "");
  return result.call.error;
}

inline std::string printed(Words words, const Environment& variables = {}, const TrainerOptions& defaults = {}) {
  words.emplace_back("--print_config");
  const auto result = read(words, variables, defaults);
  EXPECT_EQ(result.call.exit_code, 0) << result.call.error;
  return result.call.output;
}

inline void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
}

}  // namespace muster::trainer::testing
