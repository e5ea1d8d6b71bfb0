// The code of port.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <muster/optim/averaging.h>
#include <torch/torch.h>

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

struct NetImpl : torch::nn::Module {
  torch::Tensor encode(torch::Tensor x) { return hidden(x).relu(); }
  torch::Tensor forward(torch::Tensor x) { return head(encode(x)); }
  torch::Tensor spread() { return log_std.exp(); }
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(4, 8))},
      head{register_module("head", torch::nn::Linear(8, 2))};
  torch::Tensor log_std = register_parameter("log_std", torch::zeros(2));
};
TORCH_MODULE(Net);

static std::vector<torch::data::Example<>> samples(int64_t count) {
  std::vector<torch::data::Example<>> all;
  for (int64_t i = 0; i < count; ++i)
    all.emplace_back(torch::sin(torch::arange(4, torch::kFloat) + i), torch::tensor(i % 2));
  return all;
}

// Takes the handles: it trains.
static void train(muster::Accelerator& accelerator, muster::Model<NetImpl>& model, muster::Optimizer& optimizer,
                  muster::DataLoader<torch::data::Example<>>& batches) {
  model->train();  // what is not a forward: by the arrow
  for (auto& [x, label] : batches) {
    optimizer.zero_grad();
    accelerator.backward(torch::nn::functional::cross_entropy(model(x) / model.run(&NetImpl::spread), label));
    optimizer.step();
  }
}

// Takes the module: it runs nothing.
static int64_t size_of(Net& net) {
  int64_t size = 0;
  for (auto& p : net->parameters()) size += p.numel();
  return size;
}

static double accuracy(muster::Accelerator& accelerator, muster::Model<NetImpl>& model,
                       muster::DataLoader<torch::data::Example<>>& batches) {
  torch::NoGradGuard no_grad;
  int64_t right = 0, seen = 0;
  for (auto& batch : batches) {
    auto [output, target] = accelerator.gather_for_metrics(model(batch.data), batch.target);
    right += output.argmax(1).eq(target).sum().item<int64_t>();
    seen += target.size(0);
  }
  return static_cast<double>(right) / static_cast<double>(seen);
}

class Agent {
 public:
  explicit Agent(muster::Accelerator& accelerator) : accelerator(accelerator) {}
  void learn(const torch::Tensor& state);

 private:
  muster::Accelerator& accelerator;
  muster::Model<NetImpl> net = accelerator.prepare(Net());
  muster::Optimizer optimizer = accelerator.prepare(torch::optim::Adam(net->parameters(), 1e-2));
};

void Agent::learn(const torch::Tensor& state) {
  auto [mean, spread] =
      net.run([](NetImpl& net, const torch::Tensor& x) { return std::tuple(net.forward(x), net.spread()); }, state);
  optimizer.zero_grad();
  accelerator.backward(((mean - 1) / spread).square().mean());
  optimizer.step();
}

static void play(muster::Accelerator& accelerator) {
  Agent agent(accelerator);
  const auto episodes = 3 + accelerator.process_index();
  const auto play_one = [] { return torch::randn({5, 4}); };
  accelerator.join_uneven_inputs([&] {
    for (int64_t i = 0; i < episodes; ++i) agent.learn(play_one());  // not the same number on every rank
  });
}

class Critic {
 public:
  void set_up(muster::Accelerator& accelerator) {
    std::tie(model, optimizer, scheduler) = accelerator.prepare(
        Net(),
        [](NetImpl& net) {
          std::vector<torch::optim::OptimizerParamGroup> groups;
          groups.emplace_back(net.head->parameters(), std::make_unique<torch::optim::AdamOptions>(1e-2));
          auto others = net.hidden->parameters();
          others.push_back(net.log_std);
          groups.emplace_back(others);
          return torch::optim::Adam(groups, torch::optim::AdamOptions(1e-3));
        },
        [](torch::optim::Optimizer& adam) { return torch::optim::StepLR(adam, /*step_size=*/10, /*gamma=*/0.5); });
  }
  double learn(muster::Accelerator& accelerator, const torch::Tensor& state) {
    optimizer.zero_grad();
    accelerator.backward((model(state) / model.run(&NetImpl::spread)).square().mean());
    const double norm = model.grad_norm();
    optimizer.step();
    scheduler.step();
    return norm;
  }

 private:
  muster::Model<NetImpl> model;  // empty until set_up()
  muster::Optimizer optimizer;
  muster::Scheduler scheduler;
};

static void by_functions(muster::Accelerator& accelerator) {
  auto [model, optimizer, batches] = accelerator.prepare(
      Net(), [](auto parameters) { return torch::optim::AdamW(parameters, 1e-3); },
      muster::DataLoader(samples(8), {.batch_size = 4}));
  double total = 0;
  for (auto& [x, label] : batches) total += model(x).sum().item<double>();
  Critic critic;
  critic.set_up(accelerator);
  const double norm = critic.learn(accelerator, torch::ones({2, 4}));
  accelerator.out() << "sum " << total << ", norm of the gradients " << norm << std::endl;
  require(norm > 0, "a gradient");
}

static void copy_weights(Net& target, Net& source, double tau) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < target->parameters().size(); ++i)
    target->parameters()[i].mul_(1 - tau).add_(source->parameters()[i], tau);
}

static void follow_target(const char* strategy) {
  muster::Accelerator accelerator({.strategy = strategy});
  const bool whole = std::string_view(strategy) != "fsdp";
  const double tau = 0.1;
  torch::manual_seed(3);
  Net value_net, by_hand;
  auto [value, optimizer] = accelerator.prepare(value_net, torch::optim::SGD(value_net->parameters(), 0.1));
  if (whole) copy_weights(by_hand, value_net, 1);  // once prepare has made the ranks alike
  muster::AveragedModel target(value, {.decay = 1 - tau});
  target.update();  // the first time: a copy
  const auto state = torch::sin(torch::arange(8, torch::kFloat)).view({2, 4});
  for (int step = 0; step < 3; ++step) {
    const auto next = target.use([&] {
      torch::NoGradGuard no_grad;
      return value(state);
    });
    optimizer.zero_grad();
    accelerator.backward((value(state) - 0.9 * next - 1).square().mean() + value.run(&NetImpl::spread).mean());
    optimizer.step();
    target.update();
    if (whole) copy_weights(by_hand, value_net, tau);
    require(!whole || torch::allclose(by_hand->forward(state), target.use([&] { return value(state); })),
            "both targets are alike");
  }
}

static void sum_as_loss(muster::Accelerator& accelerator) {
  torch::manual_seed(4);
  Net net, alone;
  copy_weights(alone, net, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto all = torch::sin(torch::arange(16, torch::kFloat)).view({4, 4});
  const auto x = accelerator.split_between_processes(all);
  auto loss = (model(x) / model.run(&NetImpl::spread)).square().sum();
  accelerator.backward(loss * accelerator.num_processes());
  (alone->forward(all) / alone->spread()).square().sum().backward();
  require(torch::allclose(net->head->weight.grad(), alone->head->weight.grad()), "a sum over all samples");
}

struct PaddedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& padding) {
    return muster::in_fp32([&](torch::Tensor wide) { return layer(wide, torch::Tensor(), padding); }, x);
  }
  torch::nn::TransformerEncoderLayer layer{
      register_module("layer", torch::nn::TransformerEncoderLayer(torch::nn::TransformerEncoderLayerOptions(8, 2)))};
};
TORCH_MODULE(Padded);

static void padding_in_bf16() {
  muster::Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(Padded());
  const auto x = torch::ones({3, 2, 8}), padding = torch::zeros({2, 3}, torch::kBool);
  require(model(x, padding).isfinite().all().item<bool>(), "padding in float32");
  try {
    model.run([&](PaddedImpl& net) { return net.layer(x, torch::Tensor(), padding); });
    require(false, "LibTorch now takes padding in bfloat16: mend the page");
  } catch (const c10::Error&) {}
}

// Another one on each rank.
static double loss_of(muster::Accelerator& accelerator, int epoch) {
  return 1.0 / (1 + epoch + accelerator.process_index());
}

static void until_it_is_good(muster::Accelerator& accelerator, muster::Model<NetImpl>& model,
                             const std::filesystem::path& folder) {
  double best = 1e9;
  for (int epoch = 0; epoch < 5; ++epoch) {
    const double mean = accelerator.reduce(loss_of(accelerator, epoch), "mean");  // the same on every rank
    if (mean < best) accelerator.save_model(model, folder / "best");              // so all save, or none
    best = std::min(best, mean);
    if (mean < 0.3) break;
  }
}

int main() {
  torch::manual_seed(1);  // before the model: alike on every rank
  muster::Accelerator accelerator({.split_batches = true});
  if (!accelerator.is_main_process()) std::freopen("/dev/null", "w", stdout);
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, batches, tests] =
      accelerator.prepare(net, sgd, muster::DataLoader(samples(20), {.batch_size = 4, .shuffle = true}),
                          muster::DataLoader(samples(9), {.batch_size = 4}));
  accelerator.set_seed(1, /*per_rank=*/true);  // from here on each rank draws noise of its own
  for (auto epoch : accelerator.epochs(3)) {
    train(accelerator, model, optimizer, batches);
    const double right = accuracy(accelerator, model, tests);
    std::printf("epoch %d: %.3f right, %d parameters\n", static_cast<int>(epoch), right,
                static_cast<int>(size_of(net)));
  }
  const std::filesystem::path folder = accelerator.broadcast_object(
      accelerator.is_main_process() ? muster::new_temporary_folder("muster-howto-").string() : std::string());
  until_it_is_good(accelerator, model, folder);
  require(std::filesystem::exists(folder / "best"), "the best weights");
  accelerator.group().barrier();
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
  play(accelerator);
  by_functions(accelerator);
  sum_as_loss(accelerator);
  follow_target("ddp");
  follow_target("fsdp");
  padding_in_bf16();
  std::puts("1 passed, 0 failed, 0 skipped");
}
