#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/weights.h"

/// Trains what fsdp_parity.py has trained, as one rank. Called by that script: FOLDER STRATEGY WIDTH VOCABULARY BLOCKS
/// STEPS
namespace {

constexpr int64_t kBatch = 2, kLength = 16, kHeads = 4;

/// C++'s Linear multiplies and adds in two operators where Python's has one, which rounds otherwise.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = linear(qkv, norm1(x)).view({batch, length, 3, kHeads, width / kHeads}).permute({2, 0, 3, 1, 4});
    const auto scores = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) / 4.0, -1);
    const auto y = x + linear(out, scores.matmul(parts[2]).transpose(1, 2).reshape({batch, length, width}));
    return y + linear(down, torch::gelu(linear(up, norm2(y))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl(int64_t width, int64_t vocabulary, int64_t count) {
    tokens = register_module("tokens", torch::nn::Embedding(vocabulary, width));
    positions = register_module("positions", torch::nn::Embedding(kLength, width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < count; ++i) blocks->push_back(Block(width));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(width, vocabulary).bias(false)));
  }
  at::Tensor forward(const at::Tensor& text) {
    const auto given = text.slice(1, 0, -1), wanted = text.slice(1, 1);
    auto x = tokens(given) + positions(torch::arange(given.size(1)));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), wanted.flatten());
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  /// Fills the tensors with the numbers of the file.
  void read(const std::string& name, const std::vector<at::Tensor>& tensors) const {
    const torch::NoGradGuard no_grad;
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    for (const auto& tensor : tensors)
      file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    if (!file || file.peek() != std::ifstream::traits_type::eof()) throw std::runtime_error(name + " has another size");
  }

  void write(const std::string& name, const std::vector<at::Tensor>& tensors) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    for (const auto& tensor : tensors)
      file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void train(const Folder& folder, const std::string& strategy, int64_t width, int64_t vocabulary, int64_t count,
           int steps) {
  at::set_num_threads(1);
  muster::Accelerator accelerator({.strategy = strategy.c_str()});
  Transformer net(width, vocabulary, count);
  folder.read("start", net->parameters());
  std::vector<std::string> names;
  for (const auto& parameter : net->named_parameters()) names.push_back(parameter.key());
  auto [model, optimizer] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.01)));
  const auto rank = std::to_string(accelerator.process_index());
  std::vector<at::Tensor> texts, losses;
  for (int step = 0; step < steps; ++step) texts.push_back(torch::zeros({kBatch, kLength + 1}, torch::kLong));
  folder.read("texts" + rank, texts);
  for (const auto& text : texts) {
    const auto loss = model(text);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.detach().clone());
  }
  folder.write("our-losses" + rank, losses);
  accelerator.save_model(model, folder.path());
  accelerator.wait_for_everyone();
  if (!accelerator.is_main_process()) return;
  const auto saved = muster::load_file(folder.path());
  std::vector<at::Tensor> weights;
  for (const auto& name : names) weights.push_back(saved.at(name).contiguous());
  folder.write("our-weights", weights);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    std::cerr << "usage: fsdp_parity FOLDER STRATEGY WIDTH VOCABULARY BLOCKS STEPS\n";
    return 2;
  }
  try {
    train(Folder(arguments[1]), arguments[2], std::stoll(arguments[3]), std::stoll(arguments[4]),
          std::stoll(arguments[5]), std::stoi(arguments[6]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
