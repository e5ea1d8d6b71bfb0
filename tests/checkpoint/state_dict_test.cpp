#include "muster/checkpoint/state_dict.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "format/checks.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

namespace nn = torch::nn;
using muster::testing::thrown;
using muster::testing::thrown_id;

struct BlockImpl : nn::Module {
  BlockImpl(int64_t inputs, int64_t planes, int64_t stride) {
    conv1 = register_module("conv1",
                            nn::Conv2d(nn::Conv2dOptions(inputs, planes, 3).stride(stride).padding(1).bias(false)));
    bn1 = register_module("bn1", nn::BatchNorm2d(planes));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(planes, planes, 3).padding(1).bias(false)));
    bn2 = register_module("bn2", nn::BatchNorm2d(planes));
    if (stride != 1 || inputs != planes)
      register_module("downsample",
                      nn::Sequential(nn::Conv2d(nn::Conv2dOptions(inputs, planes, 1).stride(stride).bias(false)),
                                     nn::BatchNorm2d(planes)));
  }
  torch::Tensor forward(torch::Tensor x) { return x; }  // never called; a Sequential asks for one
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
};
TORCH_MODULE(Block);

std::shared_ptr<nn::Module> resnet18() {
  struct ResNet18 : nn::Module {
    ResNet18() {
      register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)));
      register_module("bn1", nn::BatchNorm2d(64));
      int64_t inputs = 64, number = 1;
      for (const int64_t planes : {64, 128, 256, 512}) {
        register_module("layer" + std::to_string(number),
                        nn::Sequential(Block(inputs, planes, number == 1 ? 1 : 2), Block(planes, planes, 1)));
        inputs = planes;
        ++number;
      }
      register_module("fc", nn::Linear(512, 1000));
    }
  };
  return std::make_shared<ResNet18>();
}

/// The modules of python_names.py, as LibTorch builds them.
std::map<std::string, std::shared_ptr<nn::Module>> modules() {
  nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32));
  nn::ParameterDict parameters;
  parameters->insert("a", torch::ones(2));
  parameters->insert("b", torch::ones(3));
  nn::ModuleDict dictionary(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{
      {"a", nn::Linear(1, 2).ptr()}, {"b", nn::PReLU().ptr()}});
  return {
      {"resnet18", resnet18()},
      {"transformer",
       nn::Transformer(nn::TransformerOptions(16, 4).num_encoder_layers(2).num_decoder_layers(2).dim_feedforward(32))
           .ptr()},
      {"encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3).norm(
                                             nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({16})))))
                      .ptr()},
      {"decoder layer",
       nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(16, 4).dim_feedforward(32)).ptr()},
      {"attention", nn::MultiheadAttention(16, 4).ptr()},
      {"attention of other sizes",
       nn::MultiheadAttention(nn::MultiheadAttentionOptions(16, 4).kdim(8).vdim(12).add_bias_kv(true)).ptr()},
      {"lstm", nn::LSTM(nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true)).ptr()},
      {"projected lstm", nn::LSTM(nn::LSTMOptions(5, 7).proj_size(3)).ptr()},
      {"gru", nn::GRU(nn::GRUOptions(5, 7).bias(false)).ptr()},
      {"rnn", nn::RNN(5, 7).ptr()},
      {"lstm cell", nn::LSTMCell(5, 7).ptr()},
      {"gru cell", nn::GRUCell(5, 7).ptr()},
      {"embedding", nn::Embedding(nn::EmbeddingOptions(10, 4).padding_idx(0)).ptr()},
      {"embedding bag", nn::EmbeddingBag(10, 4).ptr()},
      {"layer norm", nn::LayerNorm(nn::LayerNormOptions({3, 4})).ptr()},
      {"group norm", nn::GroupNorm(2, 4).ptr()},
      {"batch norm", nn::BatchNorm1d(4).ptr()},
      {"batch norm untracked", nn::BatchNorm1d(nn::BatchNorm1dOptions(4).track_running_stats(false)).ptr()},
      {"instance norm", nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)).ptr()},
      {"transposed convolution", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(3, 4, 2)).ptr()},
      {"bilinear", nn::Bilinear(2, 3, 4).ptr()},
      {"prelu", nn::PReLU(nn::PReLUOptions().num_parameters(3)).ptr()},
      {"adaptive softmax",
       nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(32, 20, {5, 10})).ptr()},
      {"weighted loss", nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(torch::ones(3))).ptr()},
      {"weighted binary loss",
       nn::BCEWithLogitsLoss(nn::BCEWithLogitsLossOptions().weight(torch::ones(2)).pos_weight(torch::ones(3))).ptr()},
      {"list", nn::ModuleList(nn::Linear(1, 2), nn::Linear(2, 1)).ptr()},
      {"parameter list", nn::ParameterList(torch::ones(2), torch::ones(3)).ptr()},
      {"parameter dict", parameters.ptr()},
      {"module dict", dictionary.ptr()},
  };
}

std::string python_dtype(at::ScalarType type) {
  return type == at::kLong ? "int64" : type == at::kFloat ? "float32" : c10::toString(type);
}

TEST(StateDictTest, NamesShapesAndTypesEqualPythons) {
  const auto wanted = nlohmann::json::parse(checks::read(MUSTER_SOURCE_DIR "/tests/checkpoint/python_names.json"));
  const auto built = modules();
  ASSERT_EQ(built.size(), wanted.size());
  for (const auto& [name, module] : built) {
    nlohmann::json found = nlohmann::json::array();
    const State state = state_dict(*module);
    for (const auto& [key, value] : state.map())
      found.push_back({key, value.tensor().sizes().vec(), python_dtype(value.tensor().scalar_type())});
    EXPECT_EQ(found, wanted.at(name)) << name;
  }
}

TEST(StateDictTest, LoadsBackWhatItGave) {
  nn::Sequential from(nn::Linear(3, 2), nn::BatchNorm1d(2)), to(nn::Linear(3, 2), nn::BatchNorm1d(2));
  from->forward(torch::rand({5, 3}));
  const auto report = load_state_dict(*to, state_dict(*from));
  EXPECT_TRUE(report.missing_keys.empty() && report.unexpected_keys.empty());
  EXPECT_TRUE(identical(state_dict(*from), state_dict(*to)));
  EXPECT_FALSE(state_dict(*from).at("0.weight").tensor().requires_grad());
  EXPECT_TRUE(to->parameters()[0].requires_grad());
}

TEST(StateDictTest, ListsWhatOnlyOneSideHasAndChangesNothing) {
  nn::Linear net(3, 2);
  const auto before = net->weight.detach().clone();
  const State state = State::Map{{"weight", torch::ones({2, 3})}, {"extra", torch::ones(1)}};
  const auto message = thrown([&] { load_state_dict(*net, state); });
  EXPECT_NE(message.find("MU228"), std::string::npos);
  EXPECT_NE(message.find("lacks: bias"), std::string::npos) << message;
  EXPECT_NE(message.find("only the state has: extra"), std::string::npos) << message;
  EXPECT_TRUE(torch::equal(net->weight, before));
  const auto report = load_state_dict(*net, state, {.strict = false});
  EXPECT_EQ(report.missing_keys, std::vector<std::string>{"bias"});
  EXPECT_EQ(report.unexpected_keys, std::vector<std::string>{"extra"});
  EXPECT_TRUE(torch::equal(net->weight, torch::ones({2, 3})));
}

TEST(StateDictTest, ShapesMustFitEvenIfNotStrict) {
  nn::Linear net(3, 2);
  const auto before = net->bias.detach().clone();
  const State state = State::Map{{"bias", torch::ones(2)}, {"weight", torch::ones({3, 2})}};
  EXPECT_NE(
      thrown([&] { load_state_dict(*net, state, {.strict = false}); }).find("'weight' (state: [3, 2], module: [2, 3])"),
      std::string::npos);
  EXPECT_TRUE(torch::equal(net->bias, before));
  EXPECT_EQ(thrown_id([&] { load_state_dict(*net, State::Map{{"bias", 1}, {"weight", 2}}); }), "MU228");
}

TEST(StateDictTest, ConvertsTypesAndScalarsOfOldFiles) {
  nn::BatchNorm1d net(2);
  State state = state_dict(*net);
  state.set("weight", torch::full({2}, 3, torch::kDouble));
  state.set("num_batches_tracked", torch::full({1}, 9, torch::kLong));
  load_state_dict(*net, state);
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->weight[0].item<float>(), 3);
  EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 9);
}

TEST(StateDictTest, CountsOfBatchesMayBeMissingAltogether) {
  nn::Sequential net(nn::BatchNorm1d(2), nn::BatchNorm1d(2));
  State::Map old;
  const State state = state_dict(*net);
  for (const auto& [name, value] : state.map())
    if (!name.ends_with("num_batches_tracked")) old.emplace_back(name, value);
  EXPECT_TRUE(load_state_dict(*net, old).missing_keys.empty());
  old.emplace_back("0.num_batches_tracked", torch::tensor(1));
  EXPECT_EQ(thrown_id([&] { load_state_dict(*net, old); }), "MU228");
}

TEST(StateDictTest, APrefixIsSuggestedAndTaken) {
  nn::Linear net(3, 2);
  const State state = State::Map{{"module.weight", torch::ones({2, 3})}, {"module.bias", torch::ones(2)}};
  EXPECT_NE(thrown([&] { load_state_dict(*net, state); }).find(".prefix = \"module.\""), std::string::npos);
  load_state_dict(*net, state, {.prefix = "module."});
  EXPECT_TRUE(torch::equal(net->bias, torch::ones(2)));
}

TEST(StateDictTest, ATiedTensorNeedsOneValue) {
  struct Tied : nn::Module {
    Tied() { register_parameter("b", register_parameter("a", torch::zeros(3))); }
  } net;
  load_state_dict(net, State::Map{{"b", torch::ones(3)}});
  EXPECT_TRUE(torch::equal(net.parameters()[0], torch::ones(3)));
}

}  // namespace
}  // namespace muster
