// Checkpoints of tensors on the simulated accelerator.
#include <bit>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "checkpoint/device_bytes.h"
#include "checkpoint/quick.h"
#include "device/sync_point_filter.h"
#include "format/checks.h"
#include "muster/checkpoint/state_dict.h"
#include "muster/sim/sim.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::ScratchFolder;
using testing::difference_in_bits;

constexpr int kSeeds = 8;
constexpr int64_t kLarge = 4'500'001;  // more than a piece, and no multiple of anything

std::string bytes_in(const fs::path& file) {
  std::string bytes(fs::file_size(file), '\0');
  std::ifstream(file, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

/// Tensors of every layout, on a device. Made by queued work.
struct Job {
  at::Tensor large, small, turned, half, flags, complex, empty, host;

  explicit Job(at::Device device)
      : large(torch::arange(kLarge, at::kFloat).to(device)), small(torch::full({}, 3.0, device)),
        turned(torch::arange(24, at::kFloat).to(device).view({2, 3, 4}).permute({2, 0, 1})),
        half(torch::arange(1001, at::kFloat).to(device).to(at::kBFloat16)), flags(torch::arange(9).to(device) > 4),
        complex(torch::arange(6, at::kFloat).to(device).view({3, 2})), empty(torch::empty({0, 3}, device)),
        host(torch::arange(5)) {
    step(0.0);
  }
  /// One update of everything.
  void step(double by) {
    for (auto* one : {&large, &small, &turned, &complex}) one->mul_(1.5).add_(by);
    half.add_(1);
    flags.logical_not_();
    host.add_(1);
  }
  CheckpointContents contents() const {
    return {
        .shared = State::Map{{"small", small}, {"turned", turned}, {"half", half}, {"large again", large}},
        .per_rank =
            State::Map{{"flags", flags}, {"complex", at::view_as_complex(complex)}, {"empty", empty}, {"host", host}},
        .shards = {{.name = "large", .shape = {kLarge}, .begin = 0, .local = large}}};
  }
};

/// The bytes of the tensors' file; the index has the random id of a save.
std::string saved_bytes(const fs::path& folder) {
  std::string all;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") all += bytes_in(entry.path());
  EXPECT_GT(all.size(), 36'000'000U);
  return all;
}

class CheckpointOnDevice : public ::testing::Test {
 protected:
  CheckpointOnDevice() {
    sim::install();
    at::set_num_threads(1);
    sim::set_seed(1);
  }
  ScratchFolder folder;

  std::string bytes_of_cpu(int steps) {
    Job job(at::kCPU);
    for (int i = 0; i < steps; ++i) job.step(i);
    write_checkpoint(job.contents(), folder / "cpu", {}, kQuickly);
    return saved_bytes(folder / "cpu");
  }
};

TEST_F(CheckpointOnDevice, HasTheBytesOfTheCpuWhileAStepIsQueued) {
  const auto expected = bytes_of_cpu(2);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    Job job(sim::device(0));
    for (int i = 0; i < 2; ++i) job.step(i);
    write_checkpoint(job.contents(), folder / "x", {}, kQuickly);
    job.step(7);
    EXPECT_EQ(saved_bytes(folder / "x") == expected, true) << "seed " << seed;
  }
}

TEST_F(CheckpointOnDevice, IsNotDisturbedByTheNextStepWhenWrittenLater) {
  const auto expected = bytes_of_cpu(2);
  CheckpointWriter writer({}, kQuickly);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    Job job(sim::device(0));
    for (int i = 0; i < 2; ++i) job.step(i);
    writer.start(job.contents(), folder / "x");
    for (int i = 0; i < 3; ++i) job.step(7);
    writer.wait();
    EXPECT_EQ(saved_bytes(folder / "x") == expected, true) << "seed " << seed;
  }
}

TEST_F(CheckpointOnDevice, MakesTheHostWaitForNothingWhenWrittenLater) {
  Job job(sim::device(0));
  sim::set_seed(3);
  CheckpointWriter writer({}, kQuickly);
  writer.start(job.contents(), folder / "x");
  writer.wait();
  sim::reset_stats();
  for (int save = 0; save < 2; ++save) {
    job.step(1);
    writer.start(job.contents(), folder / "x");
    job.step(2);
    writer.wait();
  }
  const auto waits = sim::stats().host_waits;
  EXPECT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits.at("event"), 2) << "the writer's thread waits once for each save";
}

TEST_F(CheckpointOnDevice, IsReadBackToTheDevice) {
  Job job(sim::device(0));
  write_checkpoint(job.contents(), folder / "x", {}, kQuickly);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    const Checkpoint checkpoint(folder / "x");
    const auto whole = torch::full({kLarge}, -1.0F, sim::device(1)),
               some = torch::full({12'345}, -1.0F, sim::device(1));
    checkpoint.read("large", 0, whole);
    checkpoint.read("large", 3'500'001, some);
    EXPECT_EQ(difference_in_bits(whole.cpu(), job.large.cpu()), "") << "seed " << seed;
    EXPECT_EQ(difference_in_bits(some.cpu(), job.large.narrow(0, 3'500'001, 12'345).cpu()), "") << "seed " << seed;
  }
}

TEST_F(CheckpointOnDevice, OfWeightsGoesThroughPiecesBothWays) {
  const Job host(at::kCPU);
  const auto named = [](const Job& job) {
    return NamedTensors{{"large", job.large}, {"turned", job.turned}, {"half", job.half},
                        {"host", job.host},   {"flags", job.flags},   {"small", job.small}};
  };
  save_file(named(host), folder / "cpu.safetensors", kQuick);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    const Job job(sim::device(0));
    save_file(named(job), folder / "x.safetensors", kQuick);
    EXPECT_EQ(bytes_in(folder / "x.safetensors") == bytes_in(folder / "cpu.safetensors"), true) << "seed " << seed;
    Job other(sim::device(1));
    other.step(3);
    load_into(named(other), folder / "x.safetensors");
    const auto expected = named(host), loaded = named(other);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(difference_in_bits(loaded[i].second.cpu(), expected[i].second), "") << expected[i].first;
  }
}

TEST_F(CheckpointOnDevice, ValuesAreCopiedInPieces) {
  const Job host(at::kCPU);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    const auto to = torch::zeros({kLarge}, sim::device(0)), turned = torch::zeros({4, 2, 3}, sim::device(0));
    const auto before = to._version();
    copy_values({{to, host.large}, {turned, host.turned}});
    to.add_(1);
    EXPECT_GT(to._version(), before + 1);
    EXPECT_EQ(difference_in_bits(to.cpu(), host.large + 1), "") << "seed " << seed;
    EXPECT_EQ(difference_in_bits(turned.cpu(), host.turned.contiguous()), "");
  }
}

TEST_F(CheckpointOnDevice, TakesPowersOfTwo) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = random() >> (24 + random() % 36);
    const auto pieces = checkpoint::pinned_pieces(bytes);
    const auto total = std::accumulate(pieces.begin(), pieces.end(), size_t{0});
    for (const auto piece : pieces) EXPECT_TRUE(std::has_single_bit(piece)) << piece;
    EXPECT_GE(total, bytes);
    EXPECT_LE(total, bytes + std::max<size_t>(bytes / 20, 4096));
    EXPECT_LE(pieces.size(), 7U) << bytes;
  }
  CheckpointWriter writer({}, kQuickly);
  const Job job(sim::device(0));
  writer.start(job.contents(), folder / "x");
  writer.wait();
  const auto state = static_cast<double>(saved_bytes(folder / "x").size());  // with a small head
  EXPECT_GE(static_cast<double>(writer.staging_bytes()), 0.99 * state);
  EXPECT_LE(static_cast<double>(writer.staging_bytes()), 1.05 * state);
}

TEST_F(CheckpointOnDevice, IsRefusedWhereTheHostHasNoRoom) {
  CheckpointWriter writer({}, kQuickly);
  const auto huge = torch::zeros({1}, sim::device(0)).expand({int64_t{1} << 36});
  writer.start({.shared = State::Map{{"huge", huge}}}, folder / "x");
  const auto message = testing::thrown([&] { writer.wait(); });
  EXPECT_TRUE(message.starts_with("MU565: ")) << message;
  EXPECT_NE(message.find("256.0 GiB of pinned memory"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder / "x"));
}

/// Synchronization points without which bytes are right on the simulated device, and why they are there.
const std::set<std::string> kOfSpeed{
    "asynchronous saves: from the device to pinned memory",  // else the host waits for each copy
    "loading: from pinned memory to the device",
    "saving: copies run on a stream of their own",  // beside the work of the current stream
    "saving: from the device to pinned memory",
};

/// A save that fails while copies are queued, and a change of the tensors.
void fail_to_save(const Job& job) {
  try {
    checkpoint::PinnedRing ring(sim::device(0), [](std::string_view) { throw std::runtime_error("the disk is full"); });
    for (int i = 0; i < 8; ++i) ring.append(job.large);
  } catch (const std::runtime_error&) {}
}

TEST_F(CheckpointOnDevice, NeedsEverySyncPoint) {
  const auto expected = bytes_of_cpu(1);
  sim::set_on_race(sim::OnRace::collect);
  const device::SyncPointFilter filter;
  const Job host(at::kCPU);
  const auto noticed = [&](const std::string& point) {
    device::SyncPointFilter::leave_out(point);
    int count = 0;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      sim::set_seed(seed);
      Job job(sim::device(0));
      job.step(0);
      write_checkpoint(job.contents(), folder / "x", {}, kQuickly);
      count += saved_bytes(folder / "x") != expected;
      CheckpointWriter writer({}, kQuickly);
      writer.start(job.contents(), folder / "y");
      job.step(3);
      writer.wait();
      count += saved_bytes(folder / "y") != expected;
      fail_to_save(job);  // its waits would come before those of the writer's thread
      job.step(3);
      const auto read = torch::zeros({kLarge}, sim::device(0)), first = torch::zeros({kLarge}, sim::device(0)),
                 second = torch::zeros({kLarge}, sim::device(0));
      Checkpoint(folder / "x").read("large", 0, read);
      copy_values({{first, host.large}, {second, host.large.flip({0})}});
      count += !difference_in_bits(first.cpu(), host.large).empty();
      count += !difference_in_bits(second.cpu(), host.large.flip({0})).empty();
      job = Job(sim::device(0));
      job.step(0);
      count += !difference_in_bits(read.cpu(), job.large.cpu()).empty();
    }
    return count + static_cast<int>(sim::take_races().size());
  };
  EXPECT_EQ(noticed(""), 0);
  const auto points = device::SyncPointFilter::passed();
  EXPECT_EQ(points.size(), 9U);
  device::expect_each_needed(points, kOfSpeed, noticed);
  sim::set_on_race(sim::OnRace::raise);
}

}  // namespace
}  // namespace muster
