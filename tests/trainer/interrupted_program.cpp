// The program that the tests of kills start: a run that ends itself at one call of a hook, on one rank.
//   interrupted_program FOLDER PLACE SIGNAL VICTIM [CKPT_PATH]    PLACE: index of the call; -1: none
// Started again by its launcher, it ends itself there once more, and then no more.
// A run that comes to its end prints what it leaves behind.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

#include "muster/cluster/cluster.h"
#include "trainer/interrupted_run.h"

namespace {

void print(const muster::State& state, const std::string& name) {
  using Kind = muster::State::Kind;
  if (state.kind() == Kind::map) {
    for (const auto& [key, part] : state.map()) print(part, name + "/" + key);
  } else if (state.kind() == Kind::list) {
    for (std::size_t i = 0; i < state.list().size(); ++i) print(state.list()[i], name + "/" + std::to_string(i));
  } else if (state.kind() == Kind::tensor) {
    const auto bytes = state.tensor().contiguous();
    std::uint64_t hash = 1469598103934665603U;
    for (std::size_t i = 0; i < bytes.nbytes(); ++i)
      hash = (hash ^ static_cast<const unsigned char*>(bytes.const_data_ptr())[i]) * 1099511628211U;
    std::printf("%s: %zu bytes, %016lx\n", name.c_str(), bytes.nbytes(), static_cast<unsigned long>(hash));
  } else if (state.kind() == Kind::text) {
    std::printf("%s: %s\n", name.c_str(), state.text().c_str());
  } else if (!state.empty()) {
    std::printf("%s: %a\n", name.c_str(),
                state.kind() == Kind::boolean ? static_cast<double>(state.boolean()) : state.number());
  }
}

}  // namespace

int main(int count, char** words) {
  const std::string folder = words[1];
  muster::testing::HookCount hooks{.act_at = std::atoll(words[2])};
  const auto cluster = muster::read_cluster_environment();
  if (cluster.rank == std::atoi(words[4]) && cluster.restart_count < 2)
    hooks.act = [signal = std::atoi(words[3])] { ::kill(::getpid(), signal); };
  const auto result = muster::testing::run_interruptible(folder, hooks, count > 5 ? words[5] : "");
  if (cluster.rank != 0) return 0;
  std::printf("calls %lld\n", static_cast<long long>(result.calls));
  std::printf("result\nepochs %lld, steps %lld, stopped: %s\n", static_cast<long long>(result.epochs),
              static_cast<long long>(result.global_step), result.stopped.c_str());
  for (const auto& [name, calls] : result.counts) std::printf("%s %lld\n", name.c_str(), static_cast<long long>(calls));
  for (const auto& [name, value] : result.metrics) std::printf("%s %a\n", name.c_str(), value);
  print(result.weights, "weights");
  for (const auto& [name, state] : result.files) print(state, name);
}
