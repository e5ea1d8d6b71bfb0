// Saves and loads by command, for tests that need a process or a peer of their own:
//   copy FROM TO            load FROM, save it as the file TO, metadata included
//   fill FROM TO            the same, but into tensors that exist
//   shards FROM FOLDER SIZE load FROM, save it as a folder of weights of at most SIZE each
//   tied TO                 save a small model whose embedding and head are one tensor
//   untie FROM TO           load such a file into such a model and save its state with every name of its own
//   churn FOLDER            save two sets of weights in turn, for ever, and print a line after each
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"

namespace {

using Words = std::vector<std::string>;

muster::SaveFileOptions with(const muster::LoadedWeights& loaded) {
  return {.durability = muster::Durability::none, .metadata = loaded.metadata};
}

void copy(const Words& words) {
  const auto loaded = muster::load_file(words.at(0));
  muster::save_file(loaded.tensors, words.at(1), with(loaded));
}

void fill(const Words& words) {
  const auto loaded = muster::load_file(words.at(0));
  muster::NamedTensors fresh;
  for (const auto& [name, tensor] : loaded.tensors)
    fresh.emplace_back(name, at::empty(tensor.sizes(), tensor.options()));
  muster::load_into(fresh, words.at(0));
  muster::save_file(fresh, words.at(1), with(loaded));
}

void shards(const Words& words) {
  const auto loaded = muster::load_file(words.at(0));
  muster::save_weights(loaded.tensors, words.at(1),
                       {.durability = muster::Durability::none, .max_shard_size = words.at(2).c_str()});
}

struct Layer : torch::nn::Module {
  at::Tensor add(const std::string& name, const at::Tensor& tensor) { return register_parameter(name, tensor); }
};

/// An embedding and a head of one tensor.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    weight = head->add("weight", torch::arange(12, torch::kFloat).view({4, 3}));
    bias = head->add("bias", torch::full({4}, 0.5));
    embedding->add("weight", weight);
  }
  at::Tensor weight, bias;
  std::shared_ptr<Layer> head = register_module("head", std::make_shared<Layer>());
  std::shared_ptr<Layer> embedding = register_module("embedding", std::make_shared<Layer>());
};

void tied(const Words& words) {
  muster::save_file(muster::weights_of(TiedNet()), words.at(0), {.metadata = {{"format", "pt"}}});
}

void untie(const Words& words) {
  TiedNet net;
  {
    torch::NoGradGuard no_grad;
    net.weight.zero_();
    net.bias.zero_();
  }
  muster::load_into(muster::weights_of(net), words.at(0));
  muster::NamedTensors state;
  for (const auto& [name, tensor] : muster::weights_of(net)) state.emplace_back(name, tensor.detach().clone());
  muster::save_file(state, words.at(1));
}

void churn(const Words& words) {
  for (int round = 0;; ++round) {
    muster::NamedTensors tensors;
    for (int i = 0; i < 4; ++i) tensors.emplace_back("t" + std::to_string(i), torch::full({1 << 18}, round));
    const muster::ByteSize size = round % 3 == 2 ? "1GB" : "2MB";
    muster::save_weights(tensors, words.at(0), {.durability = muster::Durability::none, .max_shard_size = size});
    std::puts("saved");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void(const Words&)>> commands{
      {"copy", copy}, {"fill", fill}, {"shards", shards}, {"tied", tied}, {"untie", untie}, {"churn", churn}};
  const Words words(argv + 1, argv + argc);
  try {
    commands.at(words.at(0))(Words(words.begin() + 1, words.end()));
    return 0;
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  } catch (const std::out_of_range&) {
    std::fputs("usage: safetensors_program copy|fill|shards|tied|untie|churn PATHS...\n", stderr);
    return 2;
  }
}
