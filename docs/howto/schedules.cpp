#include <cmath>
#include <cstdio>

#include <muster/accelerator.h>
#include <muster/optim/averaging.h>
#include <muster/optim/clip.h>
#include <torch/torch.h>

int main() {
  muster::Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  torch::optim::AdamW adam(net->parameters(), 1e-2);
  const auto x = torch::randn({32, 8}), y = x.sum(1, true).sin();

  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, adam,
      muster::SequentialLR(adam, {.milestones = {10},
                                  .schedules = {muster::LinearLROptions{.start_factor = 0.1, .total_iters = 10},
                                                muster::CosineAnnealingLROptions{.T_max = 90}}}));
  muster::AveragedModel average(model, {.decay = 0.9});
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    auto loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    average.update();
    (step == 0 ? first : last) = loss.item<double>();
  }

  const double averaged = average.use([&, &model = model] {
    torch::NoGradGuard no_grad;
    return torch::mse_loss(model(x), y).item<double>();
  });

  const muster::SchedulerState saved = scheduler.inner()->state_dict();
  torch::optim::AdamW again(net->parameters(), 1e-2);
  muster::SequentialLR resumed(again, {.milestones = {10},
                                       .schedules = {muster::LinearLROptions{.start_factor = 0.1, .total_iters = 10},
                                                     muster::CosineAnnealingLROptions{.T_max = 90}}});
  resumed.load_state_dict(saved);

  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  (torch::mse_loss(net->forward(x), y) * std::nan("")).backward();
  muster::clip_grad_norm_(sgd, 1.0, {.non_finite = muster::NonFinite::skip});
  sgd.step();  // updates nothing: the gradients were forgotten

  std::printf("loss %.4f to %.4f, averaged %.4f, rate %.1e\n", first, last, averaged, resumed.get_last_lr()[0]);
  const bool finite = std::isfinite(net->parameters()[0].sum().item<double>());
  const bool good =
      last < first && averaged < first && finite && resumed.get_last_lr() == scheduler.inner()->get_last_lr();
  std::printf("%d passed, %d failed, 0 skipped\n", good, !good);
  return good ? 0 : 1;
}
