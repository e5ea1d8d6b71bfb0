// The program that the test of rounds on several nodes starts: trains, and writes down which samples each step had.
// In its first round it hangs after five steps, of which the third wrote the last checkpoint.
//   elastic_rank FOLDER
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/cluster/cluster.h"

namespace {

constexpr int64_t kLastSaved = 3, kHangs = 5;

struct Numbers {
  at::Tensor get(int64_t i) const { return torch::full({2}, static_cast<double>(i)); }
  int64_t size() const { return 48; }
};

/// "round epoch step rank: samples", in a file of this rank and round.
class Log {
 public:
  Log(const std::string& folder, const muster::ClusterEnvironment& cluster)
      : file_(std::fopen(
            (folder + "/samples_" + std::to_string(cluster.restart_count) + "_" + std::to_string(cluster.rank)).c_str(),
            "w")),
        start_(std::to_string(cluster.restart_count)), rank_(std::to_string(cluster.rank)) {}
  ~Log() { std::fclose(file_); }
  void add(int64_t epoch, int64_t step, const at::Tensor& batch, int64_t real) {
    std::string line = start_ + " " + std::to_string(epoch) + " " + std::to_string(step) + " " + rank_ + ":";
    for (int64_t i = 0; i < real; ++i) line += " " + std::to_string(batch[i][0].item<int64_t>());
    std::fprintf(file_, "%s\n", line.c_str());
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
  std::string start_, rank_;
};

}  // namespace

int main(int, char** words) {
  const std::string folder = words[1];
  const auto cluster = muster::read_cluster_environment();
  torch::manual_seed(cluster.restart_count);  // another order, were it not for the checkpoint
  muster::Accelerator accelerator(
      {.project = {.automatic_checkpoint_naming = true, .directory = folder, .total_limit = 2}});
  torch::nn::Linear net(2, 1);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-5),
                          muster::DataLoader(Numbers(), {.batch_size = 2, .shuffle = true}));
  const bool resumed = muster::resume(accelerator);
  Log log(folder, cluster);
  int64_t step = 0;
  for (auto epoch : accelerator.epochs(2)) {
    for (auto& batch : batches) {
      log.add(epoch, ++step, batch, batches.local_real_samples());
      accelerator.backward(model(batch).mean());
      optimizer.step();
      optimizer.zero_grad();
      if (step <= kLastSaved && !resumed) accelerator.save_state();
      if (cluster.restart_count > 0 || step < kHangs || cluster.nodes == 1) continue;
      std::printf("hangs: rank %d pid %d\n", cluster.rank, static_cast<int>(getpid()));
      std::fflush(stdout);
      for (;;) pause();
    }
  }
  std::printf("done: rank %d of %d, resumed %d\n", cluster.rank, cluster.world_size, resumed);
  return 0;
}
