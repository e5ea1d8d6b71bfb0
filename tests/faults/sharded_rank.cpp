// The program that the tests of dying ranks start: trains a sharded model and, on rank 1 in the third step, dies where
// the first argument says. The second is the folder of its checkpoint, which it takes up if there is one.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/comm/communicator.h"
#include "muster/parallel/wrap.h"

namespace {

/// Where this rank dies now; empty: nowhere.
std::string place;
std::atomic<bool> armed = false;

void die_in(const std::string& here) {
  if (!armed || place != here) return;
  if (here == "exception") throw std::runtime_error("the user's own trouble");
  raise(SIGKILL);
}

struct DiesInBackward : torch::autograd::Function<DiesInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    die_in("backward");
    return gradients;
  }
};

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(muster::wrap(torch::nn::Linear(32, 32)));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i) {
      x = torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
      if (i != 1) continue;
      die_in("forward");
      die_in("exception");
      x = DiesInBackward::apply(x);
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Stack);

void train(const std::filesystem::path& folder) {
  // Ranks that have one copy of the parameters gather nothing, but wait for each other at a step.
  muster::Accelerator accelerator({.strategy = muster::FSDP{.one_copy_per_host = place != "gather"}});
  std::printf("rank %d pid %d\n", accelerator.process_index(), static_cast<int>(getpid()));
  std::fflush(stdout);
  accelerator.group().observe([](const muster::comm::OperationEvent& event) {
    die_in(event.operation == "all_gather"       ? "gather"
           : event.operation == "reduce_scatter" ? "reduction"
           : event.operation == "barrier"        ? "update"
                                                 : "other");
    die_in("save");
  });
  Stack net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  if (std::filesystem::exists(folder)) {
    accelerator.load_state(folder);
    accelerator.print("resumed");
    return;
  }
  for (int step = 0; step < 4; ++step) {
    const bool last = step == 2 && accelerator.process_index() == 1;
    armed = last && place != "save";
    accelerator.backward(model(torch::ones({2, 32})).sum());
    optimizer.step();
    optimizer.zero_grad();
    armed = last;
    accelerator.save_state(folder);
  }
}

}  // namespace

int main(int, char** words) {
  place = words[1];
  train(words[2]);
}
