// The code of own_loops.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

/// A walk to the right end of a corridor: how long it takes is up to the policy and to chance.
struct Corridor {
  int64_t at = 0;
  torch::Tensor seen() const { return torch::full({1, 1}, static_cast<double>(at) / 4); }
  bool move(int64_t right) {
    at = std::max<int64_t>(0, at + (right ? 1 : -1));
    return at == 4;
  }
};

struct PolicyImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(1, 8))},
      last{register_module("last", torch::nn::Linear(8, 2))};
};
TORCH_MODULE(Policy);

static void learn_to_walk(muster::Accelerator& accelerator) {
  accelerator.set_seed(7);  // the same on every rank: the model
  Policy policy;
  auto [model, optimizer] = accelerator.prepare(policy, torch::optim::Adam(policy->parameters(), 0.02));
  accelerator.set_seed(7, /*per_rank=*/true);  // from here on each rank draws walks of its own
  for (int64_t step = 0; step < 50; ++step) {
    Corridor corridor;
    std::vector<torch::Tensor> seen, chosen;
    bool arrived = false;
    while (!arrived && seen.size() < 20) {  // as many moves as this rank's walk takes
      torch::NoGradGuard no_grad;
      seen.push_back(corridor.seen());
      chosen.push_back(policy->forward(seen.back()).softmax(1).multinomial(1));
      arrived = corridor.move(chosen.back().item<int64_t>());
    }
    const double reward = (arrived ? 1.0 : -1.0) / static_cast<double>(seen.size());
    auto likely = model(torch::cat(seen)).log_softmax(1).gather(1, torch::cat(chosen));
    accelerator.backward(-reward * likely.sum());  // once a step, on every rank
    optimizer.step();
    optimizer.zero_grad();
    if (arrived && seen.size() == 4) accelerator.set_trigger();  // this rank is content
    if (accelerator.check_trigger()) break;                      // all leave here, at the same step
  }
}

static void until_small(muster::Accelerator& accelerator) {
  torch::nn::Linear net(1, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int64_t step = 0; step < 500; ++step) {
    const auto x = torch::full({4, 1}, 1.0 + accelerator.process_index());
    auto loss = torch::mse_loss(model(x), 2 * x);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const auto mean = accelerator.reduce(loss.detach(), "mean");
    if (mean.item<double>() < 1e-3) break;  // the same number on every rank
  }
}

static void as_many_as_all_have(muster::Accelerator& accelerator, int64_t own_steps) {
  torch::nn::Linear net(1, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto counts = accelerator.gather_object(own_steps);
  const auto steps = *std::min_element(counts.begin(), counts.end());
  for (int64_t step = 0; step < steps; ++step) {
    accelerator.backward(model(torch::ones({4, 1})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  if (steps != 3) std::abort();
}

int main() {
  muster::Accelerator accelerator;
  learn_to_walk(accelerator);
  until_small(accelerator);
  as_many_as_all_have(accelerator, 3 + accelerator.process_index());
  accelerator.group().barrier();  // nobody has left early
  if (accelerator.is_main_process()) std::puts("1 passed, 0 failed, 0 skipped");
}
