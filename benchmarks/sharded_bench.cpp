// Steps where optimizer state, gradients or parameters are sharded over ranks, one process per rank, through the
// Accelerator API. Arguments: a strategy; gpt-9m, wide-mlp or deep-mlp; and, to see what ranks pay for each other,
// "alone", the step of a rank that knows no other, or "limit", the same and a copy and an addition of its gradients;
// or "gloo", where ranks of one host do not share memory.
// Cases: "memory..." gives the peak of a rank's memory in MiB, "formula..." what it should be; any other the
// milliseconds of a step.
#include "memory.h"
#include "models.h"
#include "muster/accelerator.h"
#include "protocol.h"

namespace {

constexpr double kMiB = 1 << 20;

bool shards_parameters(const std::string& strategy) { return strategy == "fsdp" || strategy == "zero3"; }

/// What the strategy keeps per parameter, in bytes: value, gradient and AdamW's two averages, all float32.
double bytes_per_parameter(const std::string& strategy, double ranks) {
  if (shards_parameters(strategy)) return 16 / ranks;
  if (strategy == "zero2") return 4 + 12 / ranks;
  if (strategy == "zero1") return 8 + 8 / ranks;
  return 16;
}

/// What this rank's optimizer updates in a world of two: half of the parameters where ranks share that work.
std::vector<torch::Tensor> own_parameters(const torch::nn::Module& net, const std::string& strategy) {
  auto all = net.parameters();
  if (strategy == "ddp") return all;
  int64_t left = 0;
  for (const auto& parameter : all) left += parameter.numel();
  std::vector<torch::Tensor> own;
  left /= 2;
  for (const auto& parameter : all) {
    if (parameter.numel() > left) continue;
    left -= parameter.numel();
    own.push_back(parameter);
  }
  return own;
}

/// The least that exchanging gradients over shared memory takes: each rank copies its own and adds half of a peer's.
class CopyAndAdd {
 public:
  explicit CopyAndAdd(const torch::nn::Module& net) : parameters_(net.parameters()) {
    int64_t count = 0;
    for (const auto& parameter : parameters_) count += parameter.numel();
    own_ = torch::zeros(count);
    peer_ = torch::zeros(count / 2);
  }
  void operator()() {
    torch::NoGradGuard no_grad;
    int64_t begin = 0;
    for (const auto& parameter : parameters_) {
      own_.slice(0, begin, begin + parameter.numel()).copy_(parameter.grad().view(-1));
      begin += parameter.numel();
    }
    own_.slice(0, 0, peer_.numel()).add_(peer_);
  }

 private:
  std::vector<torch::Tensor> parameters_;
  torch::Tensor own_, peer_;
};

/// A rank that was started as one of several, in a world of its own.
int leave_world() {
  const char* text = std::getenv("RANK");
  const int rank = text ? std::atoi(text) : 0;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
  return rank;
}

/// Milliseconds of the step of one rank of two without the other.
template <class Net>
int run_alone(const std::string& strategy, const std::string& name, bool limit, int steps, int warm_up) {
  const int rank = leave_world();
  muster::Accelerator accelerator;
  torch::manual_seed(0);
  Net net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::AdamW(own_parameters(*net, strategy), torch::optim::AdamWOptions(1e-5)));
  const auto batch = bench::make_input(name, rank);
  CopyAndAdd copy_and_add(*net);
  const auto step = [&] {
    optimizer.zero_grad();
    auto loss = model(batch);
    accelerator.backward(loss);
    if (limit) copy_and_add();
    optimizer.step();
    return loss;
  };
  const double first = step().template item<double>();
  for (int i = 1; i < warm_up; ++i) step();
  return bench::serve([&](const std::string&) -> bench::Measured {
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) step();
    });
    return {.value = seconds / steps * 1e3, .check = first};
  });
}

template <class Net>
int run(const std::string& strategy, const std::string& name, const std::string& backend, int steps, int warm_up) {
  muster::Accelerator accelerator({.backend = backend, .strategy = strategy.c_str()});
  const double before = bench::resident_bytes();
  torch::manual_seed(0);
  Net net;
  int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-5)));
  const auto batch = bench::make_input(name, static_cast<int>(accelerator.process_index()));
  const auto step = [&] {
    optimizer.zero_grad();
    auto loss = model(batch);
    accelerator.backward(loss);
    optimizer.step();
    return loss;
  };
  const double first = step().template item<double>();
  for (int i = 1; i < warm_up; ++i) step();
  return bench::serve([&](const std::string& asked) -> bench::Measured {
    accelerator.wait_for_everyone();
    bench::reset_peak();
    torch::Tensor loss;
    const double seconds = bench::seconds([&] {
      for (int i = 0; i < steps; ++i) loss = step();
    });
    const double check = asked.starts_with("first") ? first : loss.item<double>();
    if (asked.starts_with("memory")) return {.value = (bench::peak_bytes() - before) / kMiB, .check = check};
    if (asked.starts_with("formula"))
      return {.value = static_cast<double>(count) * bytes_per_parameter(strategy, accelerator.num_processes()) / kMiB,
              .check = check};
    return {.value = seconds / steps * 1e3, .check = check};
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "fsdp", name = argc > 2 ? argv[2] : "gpt-9m";
  const std::string way = argc > 3 ? argv[3] : "auto";
  const bool alone = way == "alone" || way == "limit";
  if (alone && name == "gpt-9m") return run_alone<bench::GPT>(strategy, name, way == "limit", 2, 2);
  if (alone) return run_alone<bench::Wide>(strategy, name, way == "limit", 4, 3);
  if (name == "deep-mlp") return run<bench::Deep>(strategy, name, way, 2, 2);
  return name == "gpt-9m" ? run<bench::GPT>(strategy, name, way, 2, 2) : run<bench::Wide>(strategy, name, way, 4, 3);
}
