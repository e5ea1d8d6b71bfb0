#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "checkpoint/quick.h"
#include "format/checks.h"
#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;

void refuses(std::string_view words, const NamedTensors& tensors) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU203", words, [&] { save_file(tensors, folder / "x", kQuick); });
  expect_error<CheckpointError>("MU203", words, [&] { save_weights(tensors, folder.path()); });
  EXPECT_EQ(checks::entries(folder.path()), 0u);
}

TEST(SaveFile, RefusesWhatTheFormatCannotHold) {
  refuses("tensor 'a' is undefined", {{"a", at::Tensor()}});
  refuses("tensor 'a' is on the meta device", {{"a", torch::empty({2}, at::kMeta)}});
  refuses("tensor 'a' is not dense; call to_dense()", {{"a", torch::eye(3).to_sparse()}});
  refuses("tensor 'a' has dtype ComplexDouble", {{"a", torch::zeros({2}, at::kComplexDouble)}});
  refuses("two tensors are named 'a'", {{"a", torch::ones(1)}, {"a", torch::zeros(1)}});
  refuses("__metadata__ is reserved", {{"__metadata__", torch::ones(1)}});
  refuses("not UTF-8", {{"a\xff", torch::ones(1)}});
}

TEST(SaveFile, KeepsTheFirstNameOfTiedTensorsAndTellsTheOthers) {
  ScratchFolder folder;
  const auto weight = torch::rand({3, 4});
  const NamedTensors tensors{
      {"head", weight}, {"embedding", weight}, {"alias", weight.view({3, 4})}, {"alone", torch::rand({3, 4})}};
  save_file(tensors, folder / "x", {.durability = Durability::none, .metadata = {{"format", "pt"}}});
  const auto loaded = load_file(folder / "x");
  ASSERT_EQ(loaded.tensors.size(), 2u);
  EXPECT_TRUE(torch::equal(loaded.at("alias"), weight));
  EXPECT_EQ(loaded.metadata,
            (std::map<std::string, std::string>{{"format", "pt"}, {"head", "alias"}, {"embedding", "alias"}}));
}

TEST(SaveFile, DoesNotOverrideTheUsersMetadata) {
  ScratchFolder folder;
  const auto weight = torch::rand(3);
  save_file({{"a", weight}, {"b", weight}}, folder / "x",
            {.durability = Durability::none, .metadata = {{"b", "mine"}}});
  EXPECT_EQ(load_file(folder / "x").metadata.at("b"), "mine");
}

TEST(SaveFile, WritesEveryOtherSharingWhole) {
  ScratchFolder folder;
  const auto flat = torch::arange(12, torch::kFloat);
  const NamedTensors views{{"all", flat},
                           {"first", flat.slice(0, 0, 6)},
                           {"second", flat.slice(0, 6, 12)},
                           {"folded", flat.view({3, 4})},
                           {"turned", flat.view({3, 4}).t()},
                           {"bits", flat.view(torch::kInt)}};
  save_file(views, folder / "x", kQuick);
  const auto loaded = load_file(folder / "x");
  EXPECT_TRUE(loaded.metadata.empty());
  for (const auto& [name, tensor] : views) EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
}

TEST(SaveFile, MakesTensorsContiguous) {
  ScratchFolder folder;
  const auto image = torch::rand({2, 3, 4, 5});
  const auto complex = torch::complex(torch::rand(4), torch::rand(4));
  const NamedTensors tensors{{"channels_last", image.contiguous(at::MemoryFormat::ChannelsLast)},
                             {"every_second", image.slice(3, 0, 5, 2)},
                             {"expanded", torch::rand({1, 4}).expand({3, 4})},
                             {"conjugate", complex.conj()},
                             {"negative", torch::imag(complex.conj())},
                             {"parameter", torch::rand({2, 2}).t().requires_grad_()}};
  save_file(tensors, folder / "x", kQuick);
  const auto loaded = load_file(folder / "x");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
    EXPECT_TRUE(loaded.at(name).is_contiguous()) << name;
  }
}

TEST(SaveFile, WritesTensorsOfADevice) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  ScratchFolder folder;
  const auto values = torch::rand({100, 100});
  save_file({{"a", values.cuda()}, {"b", values.cuda().t()}}, folder / "x", kQuick);
  EXPECT_TRUE(torch::equal(load_file(folder / "x").at("a"), values));
  EXPECT_TRUE(torch::equal(load_file(folder / "x").at("b"), values.t()));
  const auto target = torch::zeros({100, 100}, at::kCUDA);
  load_into({{"a", target}, {"b", torch::zeros({100, 100}, at::kCUDA)}}, folder / "x");
  EXPECT_TRUE(torch::equal(target.cpu(), values));
}

TEST(SaveFile, AFailureLeavesTheFormerFile) {
  ScratchFolder folder;
  save_file({{"a", torch::ones(10)}}, folder / "x", kQuick);
  expect_error<CheckpointError>("MU202", "No such file", [&] { save_file({{"a", torch::ones(1)}}, folder / "no/x"); });
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  ::getrlimit(RLIMIT_FSIZE, &former);
  const rlimit small{100'000, former.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_error<CheckpointError>("MU202", "File too large", [&] {
    save_file({{"a", torch::zeros(1'000'000)}}, folder / "x");
  });
  expect_error<CheckpointError>("MU202", "File too large", [&] {
    save_weights({{"a", torch::zeros(10)}, {"b", torch::zeros(1'000'000)}}, folder / "w", {.max_shard_size = 1000});
  });
  ::setrlimit(RLIMIT_FSIZE, &former);
  EXPECT_TRUE(torch::equal(load_file(folder / "x").at("a"), torch::ones(10)));
  EXPECT_EQ(checks::entries(folder.path()), 2u);
  EXPECT_EQ(checks::entries(folder / "w"), 0u);
}

TEST(SaveWeights, SplitsAsTheRecordedCases) {
  const auto cases = nlohmann::json::parse(checks::read(MUSTER_SOURCE_DIR "/tests/checkpoint/shard_split_cases.json"));
  ASSERT_GE(cases.size(), 3u);
  for (const auto& one : cases) {
    ScratchFolder folder;
    NamedTensors tensors;
    for (std::size_t i = 0; i < one["sizes_bytes"].size(); ++i)
      tensors.emplace_back("t" + std::to_string(i),
                           torch::full({one["sizes_bytes"][i].get<int64_t>()}, static_cast<int>(i), torch::kByte));
    const auto paths =
        save_weights(tensors, folder.path(), {.max_shard_size = one["max_shard_size"].get<std::uint64_t>()});
    ASSERT_EQ(paths.size(), one["shards"].size());
    for (std::size_t i = 0; i < paths.size(); ++i) {
      EXPECT_EQ(paths[i].filename().string(), one["shards"][i]["file"].get<std::string>());
      const auto shard = load_file(paths[i]);
      EXPECT_EQ(shard.tensors.size(), one["shards"][i]["tensors"].size());
      EXPECT_EQ(shard.metadata.at("format"), "pt");
      for (const auto& tensor : one["shards"][i]["tensors"])
        EXPECT_TRUE(torch::equal(shard.at("t" + tensor.dump()), tensors[tensor.get<std::size_t>()].second));
    }
    if (paths.size() > 1) {
      const auto index = nlohmann::json::parse(checks::read(folder / "model.safetensors.index.json"));
      EXPECT_EQ(index["metadata"]["total_size"], one["total_size"]);
      EXPECT_EQ(index["weight_map"].size(), tensors.size());
    }
    EXPECT_EQ(load_file(folder.path()).tensors.size(), tensors.size());
  }
}

TEST(SaveWeights, ReplacesAFormerSetOfAnyKind) {
  ScratchFolder folder;
  checks::write(folder / "config.json", "{}");
  const NamedTensors tensors{{"a", torch::rand(10)}, {"b", torch::rand(10)}, {"c", torch::rand(10)}};
  for (const std::uint64_t limit : {1000, 40, 80, 40, 1000}) {
    save_weights(tensors, folder.path(), {.durability = Durability::file, .max_shard_size = limit});
    const std::size_t files = limit == 1000 ? 1 : limit == 80 ? 3 : 4;
    EXPECT_EQ(checks::entries(folder.path()), files + 1) << limit;
    const auto loaded = load_file(folder.path());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(loaded.at(name), tensor));
  }
}

TEST(SaveWeights, TellsTiesInTheShardThatHasTheTensor) {
  ScratchFolder folder;
  const auto weight = torch::rand(10);
  save_weights({{"z", weight}, {"a", torch::rand(10)}, {"m", weight}}, folder.path(), {.max_shard_size = 40});
  EXPECT_EQ(load_file(folder / "model-00001-of-00002.safetensors").metadata.count("z"), 0u);
  EXPECT_EQ(load_file(folder / "model-00002-of-00002.safetensors").metadata.at("z"), "m");
}

TEST(SaveWeights, RefusesAFileInPlaceOfTheFolder) {
  ScratchFolder folder;
  checks::write(folder / "x", "mine");
  expect_error<CheckpointError>("MU202", "is not a folder", [&] {
    save_weights({{"a", torch::ones(1)}}, folder / "x");
  });
  EXPECT_EQ(checks::read(folder / "x"), "mine");
}

/// All tensors of a churning program's folder hold the number of one round.
void expect_one_round(const fs::path& folder) {
  const auto loaded = load_file(folder);
  ASSERT_EQ(loaded.tensors.size(), 4u);
  const auto round = loaded.tensors[0].second[0].clone();
  for (const auto& [name, tensor] : loaded.tensors) EXPECT_TRUE((tensor == round).all().item<bool>()) << name;
}

TEST(SaveWeights, IsNeverTornByAKill) {
  ScratchFolder folder;
  std::mt19937 random(11);
  const std::string program = MUSTER_BINARY_DIR "/tests/safetensors_program", target = (folder / "w").string();
  for (int kill = 0; kill < 20; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const char* words[] = {program.c_str(), "churn", target.c_str(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, words[0], &actions, nullptr, const_cast<char**>(words), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    char line[64];
    EXPECT_GT(::read(ends[0], line, sizeof(line)), 0) << "the program ended before its first save";
    ::usleep(random() % 20'000);  // a place in the middle of a save, anywhere
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    expect_one_round(target);
  }
  save_weights({{"a", torch::ones(1)}}, target);
  EXPECT_EQ(load_file(target).tensors.size(), 1u);
}

}  // namespace
}  // namespace muster
