#include <algorithm>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/compare.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

struct PlayerImpl : torch::nn::Module {
  explicit PlayerImpl(int64_t inputs, int64_t outputs)
      : a(register_module("a", torch::nn::Linear(inputs, 8))), b(register_module("b", torch::nn::Linear(8, outputs))) {
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Player);

struct Players {
  Players() {
    torch::manual_seed(6);
    generator = Player(2, 3);
    judge = Player(3, 1);
  }
  Player generator{nullptr}, judge{nullptr};
};

using Draws =
    std::vector<std::tuple<torch::Tensor, torch::Tensor>>;  // what is real, and the noise to make something of

Draws draws(int64_t count) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(8);
  Draws all;
  for (int64_t i = 0; i < count; ++i) {
    auto real = torch::randn({3}, random, torch::kDouble);
    all.emplace_back(real, torch::randn({2}, random, torch::kDouble));
  }
  return all;
}

/// The judge's parameters get no gradient while it lives.
class Frozen {
 public:
  explicit Frozen(torch::nn::Module& module) : module_(module) { set(false); }
  ~Frozen() { set(true); }

 private:
  void set(bool on) {
    for (auto& parameter : module_.parameters()) parameter.requires_grad_(on);
  }
  torch::nn::Module& module_;
};

template <class G, class J, class Backward>
void play(G& generator, J& judge, torch::nn::Module& judge_module, const torch::Tensor& real,
          const torch::Tensor& noise, Backward backward) {
  using torch::softplus;
  const auto made = generator(noise);
  backward((softplus(-judge(real)) + softplus(judge(made.detach()))).mean());
  const Frozen frozen(judge_module);
  backward(softplus(-judge(made)).mean());
}

std::vector<torch::Tensor> all_parameters(const Players& players) {
  auto all = players.generator->parameters();
  for (const auto& parameter : players.judge->parameters()) all.push_back(parameter);
  return all;
}

/// One process, windows of 16 in one batch.
std::vector<torch::Tensor> played_alone(const Draws& data) {
  Players players;
  torch::optim::Adam first(players.generator->parameters(), 1e-2), second(players.judge->parameters(), 1e-2);
  for (size_t begin = 0; begin < data.size(); begin += 16) {
    std::vector<torch::Tensor> real, noise;
    for (size_t i = begin; i < std::min(data.size(), begin + 16); ++i) {
      real.push_back(std::get<0>(data[i]));
      noise.push_back(std::get<1>(data[i]));
    }
    first.zero_grad();
    second.zero_grad();
    play(players.generator, players.judge, *players.judge, torch::stack(real), torch::stack(noise),
         [](const torch::Tensor& loss) { loss.backward(); });
    first.step();
    second.step();
  }
  return all_parameters(players);
}

TEST(TwoPlayers, TwoRanksAndMicroBatchesPlayAsOneProcess) {
  testing::as_ranks(2, [] {
    const auto data = draws(16 * 3 + 7);  // a short last window and a short last batch
    Players players;
    Accelerator accelerator({.even_batches = false, .gradient_accumulation_steps = 2});
    auto [generator, judge, first, second, batches] =
        accelerator.prepare(players.generator, players.judge, torch::optim::Adam(players.generator->parameters(), 1e-2),
                            torch::optim::Adam(players.judge->parameters(), 1e-2), DataLoader(data, {.batch_size = 4}));
    for (auto& [real, noise] : batches) {
      auto window = accelerator.accumulate(generator, judge);
      play(generator, judge, *players.judge, real, noise,
           [&](const torch::Tensor& loss) { accelerator.backward(loss); });
      for (auto* optimizer : {&first, &second}) {
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    const auto expected = played_alone(data), actual = all_parameters(players);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(testing::difference(actual[i].detach(), expected[i].detach(), 1e-9, 1e-9), "") << i;
  });
}

}  // namespace
}  // namespace muster
