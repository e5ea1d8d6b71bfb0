#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/init_trackers.h"
#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "track/png.h"

namespace muster {
namespace {

using Bytes = std::vector<uint8_t>;

TEST(LogImages, NumbersFromZeroToOneAreBytes) {
  const auto image = torch::tensor({{0.0f, 0.5f}, {1.0f, 2.0f}});
  const Bytes wanted = encode_png(Bytes{0, 128, 255, 255}, {.height = 2, .width = 2}, 1);
  EXPECT_EQ(encode_png(image), wanted);
  EXPECT_EQ(encode_png(image.unsqueeze(0)), wanted);
  EXPECT_EQ(encode_png(torch::tensor({{0, 128}, {255, 255}}, torch::kByte)), wanted);
}

TEST(LogImages, ChannelsAreTheFirstDimension) {
  const auto image = torch::arange(12, torch::kByte).view({3, 2, 2});
  const Bytes wanted = encode_png(Bytes{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}, {.height = 2, .width = 2}, 3);
  EXPECT_EQ(encode_png(image), wanted);
  EXPECT_EQ(encode_png(image.permute({0, 2, 1}).contiguous().permute({0, 2, 1})), wanted);
}

TEST(LogImages, ABatchIsLoggedByNumber) {
  struct Names : Tracker {
    void log(const LoggedStep& step) override {
      for (const auto& value : step.values)
        names.push_back(std::string(value.name) + "@" + std::to_string(step.step) +
                        (std::holds_alternative<PngImage>(value.data) ? "" : "?"));
    }
    std::vector<std::string> names = {};
  };
  const testing::TemporaryFolder root;
  const auto seen = std::make_shared<Names>();
  const Trackers trackers({.log_with = {seen}, .root = root.path()});
  log_images(trackers, {{"digits", torch::rand({2, 1, 4, 4})}, {"one", torch::rand({4, 4})}}, 3);
  trackers.finish();
  EXPECT_EQ(seen->names, (std::vector<std::string>{"digits/0@3", "digits/1@3", "one@3"}));
}

TEST(LogImages, WhatIsNoImageIsRefusedWhereItIsTracked) {  // MU455
  for (const auto& wrong : {torch::ones({2, 4, 4}), torch::ones(3), torch::ones({0, 4}), torch::Tensor()})
    EXPECT_EQ(testing::thrown_id([&] { encode_png(wrong); }), "MU455");
  EXPECT_NO_THROW(log_images(Trackers(), {{"none", torch::Tensor()}}));
}

}  // namespace
}  // namespace muster
