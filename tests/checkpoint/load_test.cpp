#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/quick.h"
#include "format/checks.h"
#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

using checks::expect_error;
using checks::file_of;
using checks::ScratchFolder;

/// A tensor of each type of the format that LibTorch has, with every byte its own.
NamedTensors one_of_each_type() {
  NamedTensors tensors;
  for (const auto type :
       {at::kByte, at::kChar, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kHalf,
        at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz, at::ScalarType::Float8_e8m0fnu, at::ScalarType::Float4_e2m1fn_x2}) {
    const auto bytes = torch::randint(256, {3, 4 * static_cast<int64_t>(c10::elementSize(type))}, at::kByte);
    tensors.emplace_back(c10::toString(type), bytes.view(type));
  }
  tensors.emplace_back("Bool", torch::rand({3, 5}) > 0.5);
  return tensors;
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().flatten().view(at::kByte); }

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(bytes_of(a), bytes_of(b));
}

class BothWays : public ::testing::TestWithParam<bool> {
 protected:
  LoadedWeights load(const std::filesystem::path& path) { return load_file(path, {.map = GetParam()}); }
};
INSTANTIATE_TEST_SUITE_P(LoadFile, BothWays, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Mapped" : "Read"; });

TEST_P(BothWays, EveryTypeComesBack) {
  ScratchFolder folder;
  const NamedTensors tensors = one_of_each_type();
  ASSERT_EQ(tensors.size(), 20u);
  save_file(tensors, folder / "x", {.durability = Durability::full, .metadata = {{"k", "v"}}});
  const auto loaded = load(folder / "x");
  ASSERT_EQ(loaded.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(loaded.at(name), tensor)) << name;
  EXPECT_EQ(loaded.metadata.at("k"), "v");
}

TEST_P(BothWays, EveryShapeComesBack) {
  ScratchFolder folder;
  const NamedTensors tensors{{"scalar", torch::tensor(3.5)},
                             {"empty", torch::empty({0})},
                             {"flat", torch::empty({4, 0, 2}, at::kDouble)},
                             {"one", torch::ones({1, 1, 1, 1, 1, 1})},
                             {"", torch::rand(2)},
                             {"large", torch::rand({1000, 4321})}};
  save_file(tensors, folder / "x", kQuick);
  const auto loaded = load(folder / "x");
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(loaded.at(name), tensor)) << name;
}

TEST_P(BothWays, NothingComesBackAsNothing) {
  ScratchFolder folder;
  save_file({}, folder / "x", kQuick);
  EXPECT_TRUE(load(folder / "x").tensors.empty());
  save_weights({}, folder.path());
  EXPECT_TRUE(load(folder.path()).tensors.empty());
}

TEST_P(BothWays, TensorsMayBeChangedAndOutliveTheFile) {
  ScratchFolder folder;
  save_file({{"a", torch::zeros(1000)}, {"b", torch::ones(1000)}}, folder / "x", kQuick);
  const auto first = load(folder / "x"), second = load(folder / "x");
  first.at("a").add_(5);
  save_file({{"a", torch::full({1}, 9)}}, folder / "x", kQuick);
  std::filesystem::remove(folder / "x");
  EXPECT_TRUE(torch::equal(first.at("a"), torch::full({1000}, 5.0f)));
  EXPECT_TRUE(torch::equal(second.at("a"), torch::zeros(1000)));
  EXPECT_TRUE(torch::equal(second.at("b"), torch::ones(1000)));
}

TEST_P(BothWays, DataThatDoesNotLieAlignedIsTaken) {
  ScratchFolder folder;
  const float value = 1.25f;
  const std::string data = "x" + std::string(reinterpret_cast<const char*>(&value), 4);
  checks::write(folder / "x", file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                                      data));
  const auto loaded = load(folder / "x");
  EXPECT_EQ(loaded.at("b").item<float>(), 1.25f);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.at("b").const_data_ptr()) % 4, 0u);
}

TEST_P(BothWays, AFolderComesBack) {
  ScratchFolder folder;
  const NamedTensors tensors{{"a", torch::rand(100)}, {"b", torch::rand(100)}, {"c", torch::rand(100)}};
  for (const char* size : {"400B", "1KB", "1GB"}) {
    save_weights(tensors, folder.path(), {.max_shard_size = size});
    const auto loaded = load(folder.path());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
  }
}

TEST(LoadFile, NamesWhatIsMissing) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU200", "No such file", [&] { load_file(folder / "x"); });
  expect_error<CheckpointError>("MU200", "neither model.safetensors nor", [&] { load_file(folder.path()); });
  save_file({{"a", torch::ones(1)}}, folder / "x", kQuick);
  expect_error<CheckpointError>("MU204", "no tensor is named 'b'; there are: a",
                                [&] { (void)load_file(folder / "x").at("b"); });
}

TEST(LoadFile, RefusesTypesThatLibTorchHasNot) {
  ScratchFolder folder;
  checks::write(folder / "x", file_of(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "abc"));
  expect_error<CheckpointError>("MU207", "F6_E2M3, which LibTorch has not", [&] { load_file(folder / "x"); });
  checks::write(folder / "x", file_of(R"({"a":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]}})", "a"));
  expect_error<CheckpointError>("MU207", "LibTorch has only pairs", [&] { load_file(folder / "x"); });
}

TEST(LoadFile, RefusesBooleansThatAreNone) {
  ScratchFolder folder;
  checks::write(folder / "x", file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\2"));
  expect_error<CheckpointError>("MU201", "a byte other than 0 and 1", [&] { load_file(folder / "x"); });
  const auto target = torch::zeros(2, at::kBool);
  expect_error<CheckpointError>("MU201", "a byte other than 0 and 1", [&] {
    load_into({{"a", target}}, folder / "x");
  });
  EXPECT_FALSE(target.any().item<bool>());
}

TEST(LoadFile, RefusesShardsOfDifferentSaves) {
  ScratchFolder folder;
  const NamedTensors tensors{{"a", torch::rand(10)}, {"b", torch::rand(10)}};
  save_weights(tensors, folder.path(), {.max_shard_size = 40});
  const auto second = folder / "model-00002-of-00002.safetensors";
  save_file({{"c", torch::rand(10)}}, second, kQuick);
  expect_error<CheckpointError>("MU205", "says that tensor 'b' is in model-00002", [&] { load_file(folder.path()); });
  save_file({{"b", torch::rand(10)}, {"c", torch::rand(10)}}, second, kQuick);
  expect_error<CheckpointError>("MU205", "does not know tensor 'c'", [&] { load_file(folder.path()); });
  save_file({{"a", torch::rand(10)}, {"b", torch::rand(10)}}, second, kQuick);
  expect_error<CheckpointError>("MU205", "tensor 'a' is in two files", [&] { load_file(folder.path()); });
  std::filesystem::remove(second);
  expect_error<CheckpointError>("MU200", "model-00002-of-00002", [&] { load_file(folder.path()); });
}

TEST(LoadFile, SurvivesTwoThousandMutationsOfAFile) {
  ScratchFolder folder;
  save_file({{"weight", torch::rand({2, 3})}, {"mask", torch::ones(4, at::kBool)}}, folder / "x", kQuick);
  const std::string valid = checks::read(folder / "x");
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = valid;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    checks::write(folder / "y", bytes);
    try {
      for (const auto& [name, tensor] : load_file(folder / "y", {.map = i % 2 == 0}).tensors)
        (void)bytes_of(tensor).sum();
    } catch (const CheckpointError&) {}
  }
}

TEST(LoadInto, EveryTypeIsFilledInPlace) {
  ScratchFolder folder;
  const NamedTensors tensors = one_of_each_type();
  save_file(tensors, folder / "x", kQuick);
  NamedTensors targets;
  for (const auto& [name, tensor] : tensors) targets.emplace_back(name, at::empty(tensor.sizes(), tensor.options()));
  const auto report = load_into(targets, folder / "x");
  EXPECT_TRUE(report.missing_keys.empty() && report.unexpected_keys.empty());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(same(targets[i].second, tensors[i].second)) << tensors[i].first;
}

TEST(LoadInto, KeepsTheDestinationsStrides) {
  ScratchFolder folder;
  const auto image = torch::rand({2, 3, 4, 5});
  save_file({{"a", image}, {"b", image}}, folder / "x", kQuick);
  const auto target = torch::zeros({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto frame = torch::zeros({4, 6, 8, 10});
  load_into({{"a", target}, {"b", frame.slice(0, 0, 4, 2).slice(1, 0, 6, 2).slice(2, 0, 8, 2).slice(3, 0, 10, 2)}},
            folder / "x");
  EXPECT_TRUE(torch::equal(target, image));
  EXPECT_TRUE(target.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(torch::allclose(frame.sum(), image.sum()));
}

TEST(LoadInto, FillsParametersAndTellsAutograd) {
  ScratchFolder folder;
  torch::nn::Linear from(3, 2), to(3, 2);
  save_weights(weights_of(*from), folder.path());
  const auto version = to->weight._version();
  const auto loss = to(torch::ones({1, 3}).requires_grad_()).sum();
  load_into(weights_of(*to), folder.path());
  EXPECT_TRUE(torch::equal(to->weight, from->weight) && torch::equal(to->bias, from->bias));
  EXPECT_GT(to->weight._version(), version);
  EXPECT_TRUE(to->weight.requires_grad() && to->weight.is_leaf());
  EXPECT_THROW(loss.backward(), c10::Error) << "autograd must see that a weight it needs has changed";
}

TEST(LoadInto, ListsNamesThatOneSideLacks) {
  ScratchFolder folder;
  save_file({{"a", torch::ones(2)}, {"extra", torch::ones(2)}}, folder / "x", kQuick);
  const auto a = torch::zeros(2), b = torch::zeros(2);
  expect_error<CheckpointError>("MU204", "the file lacks: b; only the file has: extra", [&] {
    load_into({{"a", a}, {"b", b}}, folder / "x");
  });
  EXPECT_FALSE(a.any().item<bool>()) << "nothing may be written when the check fails";
  const auto report = load_into({{"a", a}, {"b", b}}, folder / "x", {.strict = false});
  EXPECT_EQ(report.missing_keys, std::vector<std::string>{"b"});
  EXPECT_EQ(report.unexpected_keys, std::vector<std::string>{"extra"});
  EXPECT_TRUE(a.all().item<bool>());
}

TEST(LoadInto, ListsEveryShapeAndTypeThatDiffers) {
  ScratchFolder folder;
  save_file({{"a", torch::ones({2, 3})}, {"b", torch::ones(2)}, {"c", torch::ones(2)}}, folder / "x", kQuick);
  const auto c = torch::zeros(2);
  expect_error<CheckpointError>(
      "MU204", "'a' (file: F32 [2, 3], here: F32 [3, 2]), 'b' (file: F32 [2], here: F64 [2])", [&] {
        load_into({{"a", torch::zeros({3, 2})}, {"b", torch::zeros(2, at::kDouble)}, {"c", c}}, folder / "x",
                  {.strict = false});
      });
  EXPECT_FALSE(c.any().item<bool>());
}

TEST(LoadInto, RestoresTies) {
  ScratchFolder folder;
  const auto weight = torch::rand({4, 3});
  save_file({{"head", weight}, {"embedding", weight}}, folder / "x", kQuick);
  const auto one = torch::zeros({4, 3}), other = torch::zeros({4, 3}), shared = torch::zeros({4, 3});
  load_into({{"head", one}, {"embedding", other}}, folder / "x");
  EXPECT_TRUE(torch::equal(one, weight) && torch::equal(other, weight)) << "two memories take the value of one";
  load_into({{"head", shared}, {"embedding", shared}}, folder / "x");
  EXPECT_TRUE(torch::equal(shared, weight));
  save_file({{"head", weight}}, folder / "x", kQuick);
  shared.zero_();
  load_into({{"embedding", shared}, {"head", shared}}, folder / "x");
  EXPECT_TRUE(torch::equal(shared, weight)) << "a name is filled through the memory it shares, without metadata";
}

TEST(LoadInto, ReadsLargeTensorsOnSeveralThreads) {
  ScratchFolder folder;
  NamedTensors tensors, targets;
  for (int i = 0; i < 5; ++i) {
    tensors.emplace_back("t" + std::to_string(i), torch::rand({3'000'000 + i}));
    targets.emplace_back("t" + std::to_string(i), torch::zeros({3'000'000 + i}));
  }
  save_weights(tensors, folder.path(), {.durability = Durability::none, .max_shard_size = "30MB"});
  load_into(targets, folder.path());
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(torch::equal(targets[i].second, tensors[i].second));
}

TEST(WeightsOf, FollowsPythonsOrder) {
  struct : torch::nn::Module {
  } module;
  torch::nn::Module* net = &module;
  net->register_buffer("scale", torch::ones(1));
  net->register_module("first", torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3)).ptr());
  net->register_module("last", torch::nn::Linear(3, 1).ptr());
  net->register_parameter("gain", torch::ones(1));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights_of(*net)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"gain", "scale", "first.0.weight", "first.0.bias", "first.1.weight",
                                             "first.1.bias", "first.1.running_mean", "first.1.running_var",
                                             "first.1.num_batches_tracked", "last.weight", "last.bias"}));
}

}  // namespace
}  // namespace muster
