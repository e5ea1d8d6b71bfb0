#include <cstdio>

#include <muster/accelerator.h>
#include <muster/parallel/comm_hook.h>
#include <muster/parallel/options.h>
#include <torch/torch.h>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    inside = register_module("inside", torch::nn::Linear(16, 64));
    norm = register_module("norm", torch::nn::BatchNorm1d(64));
    outside = register_module("outside", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return outside(torch::relu(norm(inside(x)))); }
  torch::nn::Linear inside{nullptr}, outside{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

bool trains(muster::Accelerator& accelerator, bool local) {
  torch::manual_seed(1);
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  accelerator.convert_sync_batchnorm(model);
  torch::manual_seed(10 + accelerator.process_index());
  const auto x = torch::randn({32, 16}), y = x.sum(1, true).sin();
  double first = 0, last = 0;
  auto local_sgd = accelerator.local_sgd(model, {.enabled = local, .local_sgd_steps = 4});
  for (int step = 0; step < 50; ++step) {
    auto loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  local_sgd.finish();
  return last < first;
}

}  // namespace

int main() {
  muster::Accelerator compressed(
      {.strategy = muster::DDP{.comm_hook = "powersgd", .power_sgd = {.rank = 2, .start_iteration = 10}}});
  const bool good = trains(compressed, false) && trains(compressed, true);
  auto hook = muster::parallel::make_comm_hook(
      [](const muster::parallel::GradientBucket& bucket,
         const muster::comm::Communicator& group) -> muster::parallel::CommHook::Finish {
        auto work = group.start_all_reduce(bucket.flat);
        return [work]() mutable { work.wait(); };
      });
  const muster::DDP own{.custom_hook = hook};
  muster::Accelerator other({.strategy = own});
  const bool all = good && trains(other, false);
  other.print("{} passed, {} failed, 0 skipped", static_cast<int>(all), static_cast<int>(!all));
  return all ? 0 : 1;
}
