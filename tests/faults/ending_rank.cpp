// The program that the tests of ends start: trains, and rank VICTIM ends in the third step in the given way.
//   ending_rank run|launch KIND VICTIM FOLDER
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/launcher/launch.h"
#include "muster/tree/state.h"

namespace {

constexpr int64_t kBatch = 4, kSteps = 8;

std::string kind;
int victim = 0;

struct Numbers {
  int rank = 0;
  int64_t size() const { return 2 * kBatch * kSteps; }
  std::tuple<at::Tensor, at::Tensor> get(size_t index) const {
    if (kind == "data_set" && rank == victim && index >= 4 * kBatch)
      throw std::runtime_error("sample " + std::to_string(index) + " is torn");
    return {torch::full({3}, static_cast<double>(index)), torch::ones({1})};
  }
};

/// Saved with the rest.
struct Note {
  int rank = 0;
  muster::State state_dict() const {
    if (kind == "save" && rank == victim) throw std::runtime_error("the note cannot be saved");
    return int64_t{1};
  }
  void load_state_dict(const muster::State&) {}
};

void fill_disk() {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_FSIZE, &none);
}

void end() {
  if (kind == "exit") std::exit(3);
  if (kind == "signal") {
    signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler, which would exit
    raise(SIGSEGV);
  }
  if (kind == "stop") raise(SIGSTOP);
  if (kind == "shapes") torch::mm(torch::ones({2, 3}), torch::ones({4, 1}));
  if (kind == "uncaught" || kind == "caught") throw std::runtime_error("the user's own trouble");
}

void train(const std::filesystem::path& folder) {
  muster::Accelerator accelerator;
  const int rank = accelerator.process_index();
  torch::nn::Linear net(3, 1);
  auto [model, optimizer, batches] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-4),
                                                         muster::DataLoader(Numbers{rank}, {.batch_size = kBatch}));
  Note note{rank};
  accelerator.register_for_checkpointing(note);
  int64_t step = 0;
  for (auto& [x, y] : batches) {
    if (++step == 3 && rank == victim) end();
    if (step == 3 && rank == victim && kind == "early") break;
    accelerator.backward(torch::mse_loss(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
    if (step != 3 || (kind != "save" && kind != "disk")) continue;
    if (kind == "disk" && rank == victim) fill_disk();
    accelerator.save_state(folder);
  }
}

}  // namespace

int main(int, char** words) {
  kind = words[2];
  victim = std::atoi(words[3]);
  if (std::string(words[1]) == "launch") muster::launch(2);
  if (kind == "uncaught" || kind == "shapes") return train(words[4]), 0;
  try {
    train(words[4]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "caught: %s\n", error.what());
    return 1;
  }
}
