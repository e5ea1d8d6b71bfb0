// The code of values.md.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

static void require(bool good) {
  if (!good) std::abort();
}

int main() {
  muster::Accelerator accelerator;
  std::vector<std::tuple<torch::Tensor, int64_t>> data;
  for (int64_t i = 0; i < 13; ++i) data.emplace_back(torch::full({4}, 0.1 * i), i % 3);
  auto [model, eval] = accelerator.prepare(torch::nn::Linear(4, 3), muster::DataLoader(data, {.batch_size = 4}));

  int64_t right = 0, seen = 0;
  for (auto& [x, label] : eval) {
    auto [guess, truth] = accelerator.gather_for_metrics(model(x).argmax(1), label);
    right += (guess == truth).sum().item<int64_t>();
    seen += truth.size(0);
  }
  require(seen == 13);  // not more, whatever the number of ranks

  const auto confusion = torch::zeros({3, 3});
  const auto matrices = accelerator.gather_for_metrics(muster::per_rank(confusion));  // three rows of every rank
  require(matrices.size(0) == 3 * accelerator.num_processes());

  auto collected = accelerator.collector<torch::Tensor, torch::Tensor>();
  for (auto& [x, label] : eval) collected.add(model(x).argmax(1), label);
  auto [guesses, truths] = collected.gathered();  // once per epoch, on the CPU
  require(truths.size(0) == 13 && (guesses == truths).sum().item<int64_t>() == right);

  std::map<std::string, torch::Tensor> figures{{"loss", torch::tensor(1.0)}, {"norm", torch::tensor(2.0)}};
  figures = accelerator.reduce(figures, "mean");

  const auto names =
      accelerator.gather_object(std::vector<std::string>{"rank " + std::to_string(accelerator.process_index())});
  const auto best = accelerator.broadcast_object(std::map<std::string, double>{{"lr", 0.1}});
  require(std::ssize(names) == accelerator.num_processes() && best.at("lr") == 0.1);

  const std::vector<std::string> prompts{"one", "two", "three"};
  for (const auto& prompt : accelerator.split_between_processes(prompts)) require(!prompt.empty());
  const auto equal = accelerator.split_between_processes(prompts, {.apply_padding = true});
  require(std::ssize(equal) == (3 + accelerator.num_processes() - 1) / accelerator.num_processes());
  std::puts("1 passed, 0 failed, 0 skipped");
}
