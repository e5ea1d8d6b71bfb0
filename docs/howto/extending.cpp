// The code of extending.md.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/accelerator.h>
#include <muster/cluster/cluster.h>
#include <muster/precision/plugin.h>
#include <muster/strategy/strategy.h>
#include <torch/torch.h>

static std::optional<muster::ClusterEnvironment> read_grid(const muster::Environment& variables) {
  if (!variables.has("GRID_RANK")) return std::nullopt;  // not ours: Muster's own readers go on
  const auto number = [&](const char* name) { return std::stoi(variables.find(name).value()); };
  muster::ClusterEnvironment cluster;
  cluster.rank = number("GRID_RANK");
  cluster.world_size = number("GRID_SIZE");
  cluster.local_world_size = number("GRID_PER_NODE");
  cluster.local_rank = cluster.rank % cluster.local_world_size;
  cluster.node_rank = cluster.rank / cluster.local_world_size;
  cluster.nodes = cluster.world_size / cluster.local_world_size;
  cluster.rendezvous = muster::RendezvousKind::tcp;
  cluster.main_address = variables.find("GRID_HEAD").value();
  cluster.main_port = 29500;
  return cluster;
}

static void own_launcher() {
  muster::Accelerator accelerator({.cluster_reader = read_grid});
  accelerator.print("{} ranks", accelerator.num_processes());

  const muster::Environment variables{
      {"GRID_HEAD", "grid0"}, {"GRID_PER_NODE", "2"}, {"GRID_RANK", "3"}, {"GRID_SIZE", "4"}};
  const auto cluster = muster::read_cluster_environment(variables, read_grid);
  if (cluster.node_rank != 1 || cluster.local_rank != 1 || cluster.nodes != 2) std::abort();
}

class Averaged : public muster::DelegatingModel {
 public:
  Averaged(torch::nn::Module& module, const muster::comm::Communicator& group)
      : DelegatingModel(muster::make_strategy("auto", 1, 1)->setup_module(module, group)), group_(group),
        module_(module) {}
  void after_backward() override {
    DelegatingModel::after_backward();
    if (!gradient_sync()) return;  // a micro-batch that does not end its window
    for_each_gradient(module_.parameters(), [&](const torch::Tensor& gradient) {
      group_.all_reduce(gradient);
      torch::Tensor(gradient).div_(group_.size());
    });
  }
  std::string describe() const override { return "gradients averaged one by one"; }

 private:
  muster::comm::Communicator group_;
  torch::nn::Module& module_;
};

struct Averaging : muster::TrainingStrategy {
  std::string_view name() const override { return "averaging"; }
  std::shared_ptr<muster::ManagedModel> setup_module(torch::nn::Module& module,
                                                     const muster::comm::Communicator& group) const override {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters()) group.broadcast(parameter);  // every rank starts from rank 0's
    return std::make_shared<Averaged>(module, group);
  }
};

struct BySize : muster::TrainingStrategy {
  std::string_view name() const override { return "by_size"; }
  std::shared_ptr<muster::ManagedModel> setup_module(torch::nn::Module& module,
                                                     const muster::comm::Communicator& group) const override {
    int64_t elements = 0;
    for (const auto& parameter : module.parameters()) elements += parameter.numel();
    const muster::Strategy chosen = elements > 1'000'000'000 ? "fsdp" : "ddp";
    return muster::make_strategy(chosen, group.size(), group.size())->setup_module(module, group);
  }
};

static void own_strategy(const std::shared_ptr<muster::TrainingStrategy>& strategy) {
  muster::Accelerator accelerator({.strategy = strategy});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(model(torch::full({2, 4}, accelerator.process_index() + 1.0)).mean());
  const double gradient = net->weight.grad().mean().item<double>();
  optimizer.step();
  if (gradient != (accelerator.num_processes() == 1 ? 1.0 : 1.5)) std::abort();
}

/// Parameters and most products in bfloat16; products in float32 that are left may be rounded.
class Rounded : public muster::PrecisionPlugin {
 public:
  std::string_view name() const override { return "rounded"; }
  at::ScalarType parameter_dtype() const override { return torch::kBFloat16; }
  std::optional<at::ScalarType> reduce_dtype() const override { return torch::kFloat; }
  void convert_output(torch::Tensor&) override {}  // bfloat16 outputs stay bfloat16
  void enter_forward() override {
    const bool exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
    before_.push_back(exact ? "highest" : "high");
    at::globalContext().setFloat32MatmulPrecision("high");
  }
  void leave_forward() noexcept override {
    at::globalContext().setFloat32MatmulPrecision(before_.back());
    before_.pop_back();
  }

 private:
  std::vector<const char*> before_;  // a stack: a model may call another one
};

struct NormedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return body(norm(x.to(torch::kFloat)).to(torch::kBFloat16)); }
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))};
  torch::nn::Linear body{register_module("body", torch::nn::Linear(4, 1))};
};
TORCH_MODULE(Normed);

static void custom_precision(const std::shared_ptr<muster::PrecisionPlugin>& policy) {
  muster::Accelerator accelerator({.fp32_modules = {"norm"}, .mixed_precision = policy, .strategy = "fsdp"});
  Normed net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto out = model(torch::ones({2, 4}));
  accelerator.backward(out.to(torch::kFloat).mean());
  optimizer.step();
  if (out.scalar_type() != torch::kBFloat16 || net->norm->weight.scalar_type() != torch::kFloat) std::abort();
  if (accelerator.plan().find("precision: rounded (given by the program") == std::string::npos) std::abort();
}

int main() {
  own_launcher();
  custom_precision(std::make_shared<Rounded>());
  own_strategy(std::make_shared<Averaging>());
  own_strategy(std::make_shared<BySize>());
  std::puts("1 passed, 0 failed, 0 skipped");
}
