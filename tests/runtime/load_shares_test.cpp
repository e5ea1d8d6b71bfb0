#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

// The ranks of a node load at the same time and share the check of a checkpoint's bytes.
namespace muster::shares {
namespace {

namespace fs = std::filesystem;

/// Bytes that the kernel has read for this process.
double bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string word;
  double count = -1;
  file >> word >> count;
  return word == "rchar:" ? count : -1;
}

double size_of(const fs::path& folder) {
  double bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") bytes += static_cast<double>(entry.file_size());
  return bytes;
}

/// A job whose ranks have saved their state.
struct SavedJob {
  explicit SavedJob(const char* strategy) : accelerator({.strategy = strategy}), model(accelerator.prepare(net)) {
    accelerator.save_state(path);
  }
  Accelerator accelerator;
  torch::nn::Linear net{2048, 2049};
  Model<torch::nn::LinearImpl> model;
  const comm::Communicator group = accelerator.group();
  const decltype(testing::shared_folder(group)) folder = testing::shared_folder(group);
  const fs::path path = folder.path() / "state";
};

TEST(LoadShares, EachByteIsCheckedOnceOnANode) {
  if (bytes_read() < 0) GTEST_SKIP() << "the kernel does not count here";
  for (const int ranks : {2, 4})
    testing::as_ranks(
        ranks,
        [] {
          for (const char* way : {"ddp", "fsdp"}) {
            SavedJob job(way);
            const auto& [group, path] = std::tie(job.group, job.path);
            const double whole = size_of(path);
            group.barrier();
            const double before = bytes_read();
            const Checkpoint checkpoint(path,
                                        {.check = CheckpointCheck::share, .part = group.rank(), .parts = group.size()});
            const auto mine = torch::tensor(bytes_read() - before, torch::kDouble);
            EXPECT_NEAR(mine.item<double>(), whole / group.size(), 1.2e6);  // a block more or less, indexes and heads
            auto all = mine.clone();
            group.all_reduce(all);
            EXPECT_NEAR(all.item<double>(), whole, 1e5 * group.size());
            // The load itself: what a rank reads of its own comes on top, or is there in memory.
            group.barrier();
            const double begin = bytes_read();
            job.accelerator.load_state(path);
            EXPECT_NEAR(bytes_read() - begin, 1.5 * whole / group.size(), 0.5 * whole / group.size() + 1.3e6) << way;
            group.barrier();
          }
        },
        std::to_string(ranks));
}

void damage(const fs::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
}

/// Wherever it is, one rank finds it, and all say so before anything is loaded.
TEST(LoadShares, WhatOneRankFindsIsAnErrorOnAll) {  // MU213
  for (const int ranks : {1, 3})
    testing::as_ranks(
        ranks,
        [] {
          for (const char* way : {"ddp", "fsdp"}) {
            SavedJob job(way);
            const auto& [group, path] = std::tie(job.group, job.path);
            {
              const torch::NoGradGuard no_grad;
              job.accelerator.summon_full_params(job.model, [&] { job.net->weight.mul_(2); });
            }
            const auto before = job.model.prepared()->managed->full_state(false);
            const auto file = path / "rank-00000.safetensors";
            const auto size = fs::file_size(file);
            for (const auto at : {std::uint64_t{3}, std::uint64_t{60}, size / 2, size - 1}) {
              group.barrier();
              if (group.rank() == 0) damage(file, at);
              group.barrier();
              std::string message;
              try {
                job.accelerator.load_state(path);
              } catch (const CheckpointError& error) {
                message = error.what();
              }
              EXPECT_EQ(message.substr(0, 5), "MU213") << way << ", " << at << ": " << message;
              EXPECT_NE(message.find("rank-00000.safetensors"), std::string::npos) << message;
              const auto now = job.model.prepared()->managed->full_state(false);
              for (size_t i = 0; i < now.size(); ++i)
                EXPECT_EQ(testing::difference_in_bits(now[i].second, before[i].second), "");
              group.barrier();
              if (group.rank() == 0) damage(file, at);  // as it was
            }
            group.barrier();
            job.accelerator.load_state(path);
            group.barrier();
          }
        },
        std::to_string(ranks));
}

}  // namespace
}  // namespace muster::shares
