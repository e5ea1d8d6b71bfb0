#include <cstring>

#include <mpi.h>
#include <muster/accelerator.h>
#include <muster/comm/mpi.h>
#include <torch/torch.h>

namespace {

/// The loss after a few steps on batches of this rank.
double train(muster::Accelerator& accelerator) {
  torch::manual_seed(1);
  torch::nn::Linear line(8, 1);
  auto [model, optimizer] = accelerator.prepare(line, torch::optim::SGD(line->parameters(), 0.1));
  torch::manual_seed(10 + accelerator.process_index());
  const auto x = torch::randn({64, 8}), y = x.sum(1, true);
  torch::Tensor loss;
  for (int step = 0; step < 20; ++step) {
    loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  return loss.item<double>();
}

bool train_everywhere() {
  muster::Accelerator accelerator({.backend = "mpi"});
  const bool learns = train(accelerator) < 1;
  accelerator.print("all {} ranks train", accelerator.num_processes());
  return learns;
}

bool train_on_some() {
  bool learns = true;
  int level = 0, rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2, rank, &part);
  if (rank < 2) {
    muster::Accelerator accelerator(
        {.backend = muster::comm::mpi_backend(part), .cluster_reader = muster::comm::mpi_ranks(part)});
    learns = train(accelerator) < 1;
    accelerator.print("{} ranks train, the others solve", accelerator.num_processes());
  } else {
    const auto solvers = muster::comm::connect(part);
    auto residual = torch::ones({3});
    solvers.all_reduce(residual);
  }
  MPI_Comm_free(&part);
  MPI_Finalize();
  return learns;
}

}  // namespace

int main(int count, char** words) {
  const bool everywhere = count > 1 && std::strcmp(words[1], "everywhere") == 0;
  return (everywhere ? train_everywhere() : train_on_some()) ? 0 : 1;
}
