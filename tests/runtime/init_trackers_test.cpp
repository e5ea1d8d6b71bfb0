#include "muster/runtime/init_trackers.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/temporary_folder.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One folder for all ranks.
template <class Program>
std::string shared_folder(const Program& program) {
  const bool is_main = program.group().rank() == 0;
  return program.broadcast_object(is_main ? new_temporary_folder("muster-trackers-").string() : std::string());
}

TEST(InitTrackers, TheMainRankWritesNumbersOfTensors) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    const auto root = shared_folder(accelerator);
    auto trackers = init_trackers(accelerator, "digits", {{"lr", 0.5}, {"width", 64}}, {.root = root});
    EXPECT_EQ(trackers.folder().empty(), !accelerator.is_main_process());
    const auto loss = torch::tensor(accelerator.process_index() + 1.0, torch::kBFloat16);
    trackers.log({{"loss", loss}, {"seen", torch::tensor({16})}, {"lr", 0.5}}, 3);
    trackers.log(std::map<std::string, torch::Tensor>{{"loss", loss * 2}}, 4);
    trackers.get_tracker("csv").log({{"loss", 7}}, 5);
    trackers.finish();
    accelerator.wait_for_everyone();
    const auto run = std::filesystem::path(root) / "digits/version_0";
    EXPECT_EQ(file_text(run / "metrics.csv"), "step,loss,seen,lr\n3,1,16,0.5\n4,2,,\n5,7,,\n");
    EXPECT_EQ(file_text(run / "hparams.yaml"), "\"lr\": 0.5\nwidth: 64\n");
    accelerator.wait_for_everyone();
    if (accelerator.is_main_process()) std::filesystem::remove_all(root);
  });
}

TEST(InitTrackers, AFailureOfTheMainRankReachesAll) {
  testing::as_ranks(2, [] {
    Fabric fabric;
    fabric.launch();
    const auto words = testing::thrown([&] { init_trackers(fabric, "digits", {}, {.log_with = {"tensor_board"}}); });
    EXPECT_NE(words.find("MU420"), std::string::npos) << words;
    fabric.barrier();
  });
}

TEST(InitTrackers, ATensorOfSeveralElementsIsRefused) {
  Accelerator accelerator;
  const auto root = shared_folder(accelerator);
  {
    const auto trackers = init_trackers(accelerator, "", std::map<std::string, double>{{"lr", 1}}, {.root = root});
    EXPECT_EQ(testing::thrown_id([&] { trackers.log({{"loss", torch::ones({2})}}, 0); }), "MU427");
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace muster
