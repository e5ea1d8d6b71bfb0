#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include <torch/torch.h>

#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"
#include "muster/testing/world.h"
#include "optim/fused.h"
#include "parallel/replicated_model.h"

/// Trains what ddp_parity.py has trained, by ReplicatedModel, and compares. Called by that script: FOLDER CASE...
namespace {

namespace parallel = muster::parallel;
namespace lib = torch::optim;

constexpr int kSteps = 20;
constexpr int64_t kPart = 4;

struct Net : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  std::vector<int64_t> shape;
};

struct Mlp final : Net {
  Mlp(int64_t inputs, int64_t hidden, int64_t outputs) {
    first = register_module("first", torch::nn::Linear(inputs, hidden));
    second = register_module("second", torch::nn::Linear(hidden, outputs));
    shape = {kPart, inputs};
  }
  at::Tensor forward(const at::Tensor& x) override { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

struct Cnn final : Net {
  Cnn() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 64, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(64));
    head = register_module("head", torch::nn::Linear(64, 64));
    shape = {kPart, 4, 6, 6};
  }
  at::Tensor forward(const at::Tensor& x) override { return head(torch::relu(norm(convolution(x))).mean({2, 3})); }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

/// C++'s Linear multiplies and adds in two operators where Python's has one, which rounds otherwise.
at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct Attention final : Net {
  Attention() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
    inputs = register_module("inputs", torch::nn::Linear(64, 192));
    output = register_module("output", torch::nn::Linear(64, 64));
    wide = register_module("wide", torch::nn::Linear(64, 128));
    narrow = register_module("narrow", torch::nn::Linear(128, 64));
    shape = {kPart, 5, 64};
  }
  at::Tensor forward(const at::Tensor& x) override {
    const auto batch = x.size(0), time = x.size(1), width = x.size(2);
    const auto parts = linear(inputs, norm(x)).view({batch, time, 3, 4, width / 4}).permute({2, 0, 3, 1, 4});
    const auto mixed = torch::softmax(parts[0].matmul(parts[1].transpose(-2, -1)) / 4.0, -1).matmul(parts[2]);
    const auto y = x + linear(output, mixed.transpose(1, 2).reshape({batch, time, width}));
    return y + linear(narrow, torch::gelu(linear(wide, y)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear inputs{nullptr}, output{nullptr}, wide{nullptr}, narrow{nullptr};
};

std::unique_ptr<Net> make_net(const std::string& name) {
  if (name == "mlp") return std::make_unique<Mlp>(64, 128, 64);
  if (name == "odd") return std::make_unique<Mlp>(10, 33, 7);
  if (name == "cnn") return std::make_unique<Cnn>();
  return std::make_unique<Attention>();
}

std::unique_ptr<lib::Optimizer> make_optimizer(const std::string& name, const std::vector<at::Tensor>& parameters) {
  if (name == "adamw") return std::make_unique<lib::AdamW>(parameters, lib::AdamWOptions(0.01).weight_decay(0.01));
  if (name == "adam") return std::make_unique<lib::Adam>(parameters, lib::AdamOptions(0.01));
  if (name == "adagrad") return std::make_unique<lib::Adagrad>(parameters, lib::AdagradOptions(0.01));
  return std::make_unique<lib::SGD>(parameters, lib::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}

/// Tensors like these, with the numbers of the file.
std::vector<at::Tensor> read(const std::string& path, const std::vector<at::Tensor>& like) {
  std::ifstream file(path, std::ios::binary);
  std::vector<at::Tensor> all;
  for (const auto& one : like) {
    all.push_back(torch::empty(one.sizes(), one.scalar_type()));
    file.read(static_cast<char*>(all.back().mutable_data_ptr()), static_cast<std::streamsize>(all.back().nbytes()));
    if (!file) throw std::runtime_error(path + " is too short");
  }
  if (file.peek() != std::ifstream::traits_type::eof()) throw std::runtime_error(path + " is too long");
  return all;
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : net.parameters()) all.push_back(parameter.grad());
  return all;
}

std::vector<at::Tensor> statistics_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> all;
  for (const auto& buffer : net.buffers())
    if (buffer.dim() > 0) all.push_back(buffer);  // not the count of batches, which C++'s Module::to converts as well
  return all;
}

/// In Python's order of evaluation: autograd adds up gradients in the order of the operators.
at::Tensor loss_of(const at::Tensor& output) {
  const auto squares = (output * output).mean();
  return squares + output.sin().mean();
}

/// One case on this rank; on rank 0, what differs.
class Case {
 public:
  Case(const std::string& folder, const std::string& name) : folder_(folder + "/" + name) {
    std::istringstream parts(name);
    std::getline(parts, model_, '-');
    std::getline(parts, dtype_, '-');
    std::getline(parts, optimizer_, '-');
  }

  std::string run(const muster::comm::Communicator& group) {
    const auto net = make_net(model_);
    net->to(dtype_ == "float64" ? at::kDouble : at::kFloat);
    if (group.rank() == 0) load(*net);
    parallel::ReplicatedModel replicated(*net, group);
    const auto inner = make_optimizer(optimizer_, net->parameters());
    muster::optim::FusedStep optimizer(*inner, {&replicated});
    const auto example = torch::empty(net->shape, net->parameters()[0].scalar_type());
    const auto batches =
        read(folder_ + "/batches" + std::to_string(group.rank()), std::vector<at::Tensor>(kSteps, example));
    for (int step = 0; step < kSteps; ++step) {
      replicated.enter_forward();
      const auto output = net->forward(batches[static_cast<size_t>(step)]);
      replicated.leave_forward();
      replicated.before_backward();
      loss_of(output).backward();
      replicated.after_backward();
      if (step == 0) compare("gradients", gradients_of(*net), true);
      optimizer.step();
      optimizer.zero_grad();
      if (step == 0 || step + 1 == kSteps)
        compare("weights" + std::to_string(step + 1), net->parameters(), model_ != "odd");
    }
    compare("buffers", statistics_of(*net), true);
    return group.rank() == 0 ? differences_ : "";
  }

 private:
  void load(const torch::nn::Module& net) const {
    torch::NoGradGuard no_grad;
    auto parameters = net.parameters();
    const auto values = read(folder_ + "/start", parameters);
    for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
  }

  void compare(const std::string& what, const std::vector<at::Tensor>& mine, bool bits) {
    const auto theirs = read(folder_ + "/" + what, mine);
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto value = mine[i].detach();
      const auto difference = bits ? muster::testing::difference_in_bits(value, theirs[i])
                                   : muster::testing::difference(value, theirs[i], 1e-6, 1e-6);
      if (!difference.empty()) differences_ += " | " + what + " " + std::to_string(i) + ": " + difference;
    }
  }

  std::string folder_, model_, dtype_, optimizer_, differences_;
};

int run_rank(const muster::ClusterEnvironment& cluster, int argc, char** argv) {
  at::set_num_threads(1);
  const auto group = muster::comm::connect(cluster);
  int failed = 0;
  for (int i = 2; i < argc; ++i) {
    const auto differences = Case(argv[1], argv[i]).run(group);
    failed += !differences.empty();
    if (group.rank() == 0) std::cout << (differences.empty() ? "passed " : "failed ") << argv[i] << differences << '\n';
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: ddp_parity FOLDER CASE...\n";
    return 2;
  }
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto ranks = muster::testing::run_processes(
      2, [&](const muster::ClusterEnvironment& cluster) { return run_rank(cluster, argc, argv); },
      {.arguments = arguments, .label = "", .timeout = std::chrono::seconds(300)});
  bool ok = true;
  for (const auto& rank : ranks) {
    std::cout << rank.output;
    ok = ok && rank.ok();
  }
  return ok ? 0 : 1;
}
