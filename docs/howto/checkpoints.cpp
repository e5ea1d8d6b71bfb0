// The code of checkpoints.md, run on two ranks.
#include <muster/base/temporary_folder.h>
#include <muster/checkpoint/checkpoint.h>
#include <muster/cluster/cluster.h>
#include <muster/dist/rendezvous.h>

#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

int main() {
  const auto group = muster::dist::connect(muster::read_cluster());
  const std::filesystem::path folder = group.broadcast_bytes(group.rank() == 0 ? muster::new_temporary_folder("muster-howto-").string() : std::string());

  // Each rank holds half of a table of 1000 rows of 8.
  const int64_t rows = 1000, columns = 8, half = rows * columns / 2;
  const auto mine = torch::arange(half * group.rank(), half * (group.rank() + 1), torch::kFloat);

  muster::CheckpointContents contents;
  contents.shared = muster::State::Map{{"step", 10}, {"scale", torch::ones(3)}};
  contents.own = muster::State::Map{{"rank", group.rank()}};
  contents.slices.push_back({.name = "table", .shape = {rows, columns}, .begin = half * group.rank(), .values = mine});
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
  for (int rank = 0; rank < checkpoint.world_size(); ++rank) expect("own", checkpoint.own(rank).at("rank").integer() == rank);

  expect("step", step == 10);
  expect("a third", torch::equal(third, torch::arange(rows * columns / 3, rows * columns * 2 / 3, torch::kFloat)));
  expect("the last step", muster::Checkpoint(folder / "all/checkpoint_3").shared().at("step").integer() == 3);
  group.barrier();
  if (group.rank() == 0) std::filesystem::remove_all(folder);
  if (group.rank() == 0 || failed > 0) std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
