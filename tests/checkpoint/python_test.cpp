#include "muster/checkpoint/python.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "base/log.h"
#include "format/checks.h"
#include "format/safetensors.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/checkpoint/weights.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

using checks::ScratchFolder;
using muster::testing::thrown;
using muster::testing::thrown_id;

const SavePythonOptions kFast{.durability = Durability::none};

std::filesystem::path sample(const std::string& name) {
  return std::filesystem::path(MUSTER_SOURCE_DIR) / "tests/format/python_files" / name;
}

class BothMaps : public ::testing::TestWithParam<bool> {
 protected:
  State load(const std::filesystem::path& path) const { return load_python(path, {.map = GetParam(), .verify = true}); }
};
INSTANTIATE_TEST_SUITE_P(PythonTest, BothMaps, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Mapped" : "Read"; });

TEST_P(BothMaps, EveryTypeComesBack) {
  ScratchFolder folder;
  State state;
  for (int number = 0; number < static_cast<int>(at::ScalarType::NumOptions); ++number) {
    const auto type = static_cast<at::ScalarType>(number);
    const auto* row = format::find_scalar_type(static_cast<format::ScalarType>(number));
    if (!row) continue;
    ASSERT_EQ(row->bytes, c10::elementSize(type)) << c10::toString(type);
    const auto bytes = type == at::kBool ? torch::randint(2, {3, 4}, at::kByte)
                                         : torch::randint(256, {3, 4 * static_cast<int64_t>(row->bytes)}, at::kByte);
    state.set(std::string(row->name), bytes.view(type));
  }
  ASSERT_EQ(state.map().size(), 27u);
  save_python(state, folder / "x.pt", kFast);
  EXPECT_TRUE(identical(load(folder / "x.pt"), state));
}

TEST_P(BothMaps, ValuesOfAllKindsComeBack) {
  ScratchFolder folder;
  const State state = State::Map{{"none", State()},
                                 {"yes", true},
                                 {"number", -0.0},
                                 {"large", int64_t{1} << 62},
                                 {"small", -70000},
                                 {"text", "\xc3\xa9"},
                                 {"bytes", std::string("\xff\0", 2)},
                                 {"list", State::List{1, State::List{}, State::Map{}}},
                                 {"state", State::Map{{"0", State::Map{{"step", 2}}}, {"10", 1}}},
                                 {"betas", State::List{0.9, 0.99}},
                                 {"empty", torch::empty({0, 3})},
                                 {"scalar", torch::tensor(2.5)}};
  save_python(state, folder / "x.pt", kFast);
  EXPECT_TRUE(identical(load(folder / "x.pt"), state));
  save_python(State(3), folder / "x.pt", kFast);
  EXPECT_EQ(load(folder / "x.pt").integer(), 3);
}

TEST_P(BothMaps, SharedMemoryStaysShared) {
  ScratchFolder folder;
  const auto base = torch::arange(12.0f).view({3, 4}), flat = torch::rand(1000);
  const State state = State::Map{{"base", base},
                                 {"transposed", base.t()},
                                 {"row", base[1]},
                                 {"bits", base[2].view(torch::kInt)},
                                 {"first", flat.slice(0, 0, 10)},
                                 {"last", flat.slice(0, 990)},
                                 {"wide", torch::ones(1).expand({1000})}};
  save_python(state, folder / "x.pt", kFast);
  EXPECT_LT(std::filesystem::file_size(folder / "x.pt"), 3000u);
  const State loaded = load(folder / "x.pt");
  EXPECT_TRUE(identical(loaded, state));
  const auto tensor = [&](const char* name) { return loaded.at(name).tensor(); };
  tensor("base")[1].fill_(7);
  EXPECT_EQ(tensor("transposed")[2][1].item<float>(), 7);
  EXPECT_EQ(tensor("row")[3].item<float>(), 7);
  EXPECT_EQ(tensor("transposed").strides(), at::IntArrayRef({1, 4}));
  EXPECT_TRUE(tensor("bits").is_alias_of(tensor("base")));
  EXPECT_FALSE(tensor("first").is_alias_of(tensor("last")));
  EXPECT_EQ(tensor("wide").stride(0), 0);
}

TEST_P(BothMaps, SamplesOfPythonAreRead) {
  for (const char* name : {"zip.pt", "legacy.pt", "protocol4.pt"}) {
    const State state = load(sample(name));
    EXPECT_TRUE(torch::equal(state.at("state_dict").at("transposed").tensor(), torch::arange(12.0f).view({3, 4}).t()))
        << name;
    EXPECT_TRUE(state.at("state_dict").at("tied").tensor().is_alias_of(state.at("state_dict").at("again").tensor()));
    EXPECT_FALSE(state.at("state_dict").at("tied").tensor().requires_grad());
    EXPECT_EQ(state.at("optimizer").at("state").at("0").at("step").tensor().item<float>(), 2);
    EXPECT_EQ(state.at("bytes").text(), std::string("\0\xff", 2));
    EXPECT_EQ(state.at("dtype").text(), "torch.float16");
  }
  EXPECT_TRUE(torch::equal(load(sample("new_dtypes.pt")).at("lazy").tensor(), torch::ones(2, at::kComplexFloat)));
}

TEST_P(BothMaps, ArchivesOfLibTorchAreRead) {
  ScratchFolder folder;
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  torch::save(net, (folder / "net.pt").string());
  EXPECT_TRUE(identical(load(folder / "net.pt"), state_dict(*net)));
  torch::save(std::vector<torch::Tensor>{torch::ones(2), torch::zeros(3)}, (folder / "list.pt").string());
  EXPECT_TRUE(torch::equal(load(folder / "list.pt").at("1").tensor(), torch::zeros(3)));
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.5).amsgrad(true));
  net->forward(torch::rand({4, 3})).sum().backward();
  adam.step();
  torch::save(adam, (folder / "adam.pt").string());
  const State state = load(folder / "adam.pt");
  EXPECT_EQ(state.at("state").map().size(), 4u);
  EXPECT_EQ(state.at("state").at("3").at("step").integer(), 1);
  EXPECT_TRUE(torch::equal(
      state.at("state").at("1").at("max_exp_avg_sq").tensor(),
      static_cast<torch::optim::AdamParamState&>(*adam.state().at(net->parameters()[1].unsafeGetTensorImpl()))
          .max_exp_avg_sq()));
  EXPECT_EQ(state.at("param_groups").list()[0].at("lr").number(), 0.5);
}

TEST(PythonTest, WhatIsNotUnderstoodIsNamedOrLeftOut) {
  const auto message = thrown([] { load_python(sample("foreign.pt")); });
  EXPECT_NE(message.find("MU226"), std::string::npos);
  EXPECT_NE(message.find("'config' is an object of '__main__.Foreign'"), std::string::npos) << message;
  log::set_level(log::Level::off);
  const State state = load_python(sample("foreign.pt"), {.leave_out = true});
  log::set_level(log::Level::warning);
  ASSERT_EQ(state.map().size(), 1u);
  EXPECT_TRUE(torch::equal(state.at("model").at("w").tensor(), torch::ones(2)));
}

/// Written by Python: partial functions, paths, enumerations, a deque, a class derived from list, keys that are
/// numbers.
TEST(PythonTest, ObjectsOfEveryKindAreLeftOut) {
  EXPECT_EQ(thrown_id([] { load_python(sample("objects.ckpt")); }), "MU226");
  ::testing::internal::CaptureStderr();
  const State state = load_python(sample("objects.ckpt"), {.leave_out = true});
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  for (const char* name : {"optimizer", "folder", "config", "recent", "words", "kind", "layers/make", "shares/0.5"})
    EXPECT_NE(said.find("'hyper_parameters/" + std::string(name) + "'"), std::string::npos) << said;
  EXPECT_TRUE(identical(
      state.at("hyper_parameters"),
      State::Map{{"rate", 0.25}, {"width", 3}, {"layers", State::Map{{"size", 4}}}, {"shares", State::Map{}}}));
  EXPECT_EQ(state.at("state_dict").at("w").tensor().item<float>(), -0.5F);
}

TEST(PythonTest, FoldersAreReadAsOneFile) {  // MU200
  ScratchFolder folder;
  const State all = State::Map{{"a", torch::ones(2)}, {"b", torch::zeros({})}};
  save_python(all, folder / "pytorch_model.bin", kFast);
  EXPECT_TRUE(identical(load_python(folder.path()), all));
  std::filesystem::remove(folder / "pytorch_model.bin");
  save_python(State::Map{{"a", all.at("a")}}, folder / "1.bin", kFast);
  save_python(State::Map{{"b", all.at("b")}}, folder / "2.bin", kFast);
  checks::write(folder / "pytorch_model.bin.index.json", R"({"weight_map": {"a": "1.bin", "b": "2.bin"}})");
  EXPECT_TRUE(identical(load_python(folder.path()), all));
  const auto message = thrown([&] { load_file(folder.path()); });
  EXPECT_NE(message.find("MU200"), std::string::npos);
  EXPECT_NE(message.find("load_model"), std::string::npos) << message;
}

TEST(PythonTest, DamageToValuesIsFoundOnDemand) {
  ScratchFolder folder;
  save_python(State::Map{{"x", torch::full({100}, 1.5)}, {"b", torch::ones(1, at::kBool)}}, folder / "x.pt", kFast);
  std::string bytes = checks::read(folder / "x.pt");
  std::string flipped = bytes;
  flipped[bytes.find(std::string("\x00\x00\xc0\x3f\x00\x00\xc0\x3f", 8)) + 2] ^= 1;
  checks::write(folder / "y.pt", flipped);
  EXPECT_EQ(thrown_id([&] { load_python(folder / "y.pt", {.verify = true}); }), "MU225");
  EXPECT_EQ(thrown_id([&] { load_python(folder / "y.pt"); }), "no error");
  const auto place = bytes.find("data/1");
  bytes[(place / 64 + 1) * 64] = 2;
  checks::write(folder / "y.pt", bytes);
  EXPECT_NE(thrown([&] { load_python(folder / "y.pt"); }).find("other than 0 and 1"), std::string::npos);
  EXPECT_EQ(thrown_id([&] { load_python(folder / "none.pt"); }), "MU200");
}

TEST(PythonTest, WhatCannotBeWrittenIsNamed) {
  ScratchFolder folder;
  const auto message = [&](const at::Tensor& tensor) {
    return thrown([&] { save_python(State::Map{{"a", State::List{tensor}}}, folder / "x.pt"); });
  };
  EXPECT_NE(message(torch::ones(2, at::kMeta)).find("MU227"), std::string::npos);
  EXPECT_NE(message(torch::ones(2, at::kMeta)).find("'a/0'"), std::string::npos);
  EXPECT_NE(message(torch::ones(2).to_sparse()).find("to_dense"), std::string::npos);
  EXPECT_NE(message({}).find("undefined"), std::string::npos);
  auto freed = torch::ones(100);
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);
  EXPECT_NE(message(freed).find("no memory"), std::string::npos);
  EXPECT_EQ(checks::entries(folder.path()), 0u);
}

TEST(PythonTest, LazyValuesAreWrittenAsTheyAre) {
  ScratchFolder folder;
  const auto lazy = torch::view_as_complex(torch::rand({3, 2})).conj();
  save_python(State(lazy), folder / "x.pt", kFast);
  EXPECT_TRUE(torch::equal(load_python(folder / "x.pt").tensor(), lazy));
}

}  // namespace
}  // namespace muster
