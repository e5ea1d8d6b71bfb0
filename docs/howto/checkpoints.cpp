// The code of checkpoints.md, run on two ranks.
#include <cstdio>
#include <filesystem>
#include <string>

#include <muster/accelerator.h>
#include <muster/base/temporary_folder.h>
#include <muster/checkpoint/checkpoint.h>
#include <muster/checkpoint/options.h>
#include <muster/checkpoint/weights.h>
#include <torch/torch.h>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

/// Learns to double its input, at a rate that is too high in the end. Returns the loss over all ranks.
double train_and_validate(muster::Accelerator& accelerator, const muster::Model<torch::nn::LinearImpl>& model,
                          muster::Optimizer& optimizer, int epoch) {
  if (epoch == 4) optimizer.inner().param_groups()[0].options().set_lr(3);
  const auto x = torch::linspace(-1, 1, 8).view({8, 1});
  accelerator.backward(torch::mse_loss(model(x), 2 * x));
  optimizer.step();
  optimizer.zero_grad();
  const torch::NoGradGuard no_grad;
  return accelerator.reduce(torch::mse_loss(model(x), 2 * x), "mean").item<double>();
}

void keep_the_best(muster::Accelerator& accelerator, const std::filesystem::path& folder) {
  torch::nn::Linear net(1, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.3));

  double best = 1e9;
  for (int epoch = 0; epoch < 6; ++epoch) {
    const double loss = train_and_validate(accelerator, model, optimizer, epoch);
    if (loss < best) {
      best = loss;
      accelerator.save_model(model, folder / "best");
    }
  }
  accelerator.load_model(model, folder / "best");

  const auto x = torch::linspace(-1, 1, 8).view({8, 1});
  const auto loss = accelerator.reduce(torch::mse_loss(model(x), 2 * x).detach(), "mean").item<double>();
  expect("the best weights", loss == best);
}

int main() {
  muster::Accelerator accelerator({.cpu = true});
  const auto& group = accelerator.group();
  const std::filesystem::path folder =
      group.broadcast_bytes(group.rank() == 0 ? muster::new_temporary_folder("muster-howto-").string() : std::string());

  keep_the_best(accelerator, folder);

  // Each rank holds half of a table of 1000 rows of 8.
  const int64_t rows = 1000, columns = 8, half = rows * columns / 2;
  const auto mine = torch::arange(half * group.rank(), half * (group.rank() + 1), torch::kFloat);

  muster::CheckpointContents contents;
  contents.shared = muster::State::Map{{"step", 10}, {"scale", torch::ones(3)}};
  contents.per_rank = muster::State::Map{{"rank", group.rank()}};
  contents.shards.push_back({.name = "table", .shape = {rows, columns}, .begin = half * group.rank(), .local = mine});
  muster::write_checkpoint(contents, folder / "one", group);

  // While training goes on, numbered, the last two of them.
  muster::CheckpointWriter writer(group, {.numbered = true, .total_limit = 2});
  for (int64_t step = 0; step < 4; ++step) {
    contents.shared.set("step", step);
    writer.start(contents, folder / "all");
    mine.add_(1);  // the tensors are copied already
  }
  expect("the path", writer.wait() == folder / "all/checkpoint_3");
  expect("the latest", muster::latest_checkpoint(folder / "all") == folder / "all/checkpoint_3");

  const muster::Checkpoint checkpoint(folder / "one", {.check = muster::CheckpointCheck::as_read});
  const auto third = checkpoint.read("table", rows * columns / 3, rows * columns * 2 / 3);
  const int64_t step = checkpoint.shared().at("step").integer();
  for (int rank = 0; rank < checkpoint.world_size(); ++rank)
    expect("own", checkpoint.per_rank(rank).at("rank").integer() == rank);

  expect("step", step == 10);
  expect("a third", torch::equal(third, torch::arange(rows * columns / 3, rows * columns * 2 / 3, torch::kFloat)));
  expect("the last step", muster::Checkpoint(folder / "all/checkpoint_3").shared().at("step").integer() == 3);
  group.barrier();
  if (group.rank() == 0) std::filesystem::remove_all(folder);
  if (group.rank() == 0 || failed > 0) std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
