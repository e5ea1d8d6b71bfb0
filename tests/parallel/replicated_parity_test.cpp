#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/world.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;
namespace lib = torch::optim;

constexpr int64_t kPart = 4;

struct Job {
  Kind kind;
  at::ScalarType dtype;
  bool adaptive;  ///< AdamW, else SGD with momentum
  int steps;
  std::string name() const {
    const char* kinds[] = {"mlp", "cnn", "transformer"};
    return std::string(kinds[static_cast<int>(kind)]) + (dtype == at::kDouble ? " f64" : " f32") +
           (adaptive ? " adamw" : " sgd");
  }
};

std::unique_ptr<lib::Optimizer> make_optimizer(const Job& job, const std::vector<at::Tensor>& parameters) {
  if (job.adaptive) return std::make_unique<lib::AdamW>(parameters, lib::AdamWOptions(0.01));
  return std::make_unique<lib::SGD>(parameters, lib::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}

/// What each rank computes: its part of each batch, gradients averaged by the reducer.
std::vector<at::Tensor> train_on_ranks(const Job& job, const Communicator& group) {
  at::set_num_threads(1);
  const auto net = make_net(job.kind, job.dtype, 40 + static_cast<uint64_t>(group.rank()));
  ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.004, .first_bucket_mb = 0.001});
  const auto inner = make_optimizer(job, net->parameters());
  optim::FusedStep optimizer(*inner, {&replicated});
  for (int step = 0; step < job.steps; ++step) {
    backward(replicated, loss_of(run(replicated, *net, draw_part(*net, kPart, step, group.rank(), job.dtype))));
    optimizer.step();
    optimizer.zero_grad();
  }
  return values(*net);
}

/// The split reference: one process computes the parts one after another, sums gradients in rank order, scales, steps.
/// Running statistics are each part's own, and those of part 0 stay.
std::vector<at::Tensor> train_split(const Job& job, int parts) {
  at::set_num_threads(1);
  const auto net = make_net(job.kind, job.dtype, 40);
  SingleDeviceModel single(*net);
  const auto inner = make_optimizer(job, net->parameters());
  optim::FusedStep optimizer(*inner, {&single});
  for (int step = 0; step < job.steps; ++step) {
    std::vector<at::Tensor> start, kept;
    for (const auto& buffer : net->buffers()) start.push_back(buffer.clone());
    for (int rank = 0; rank < parts; ++rank) {
      for (size_t i = 0; i < start.size(); ++i) net->buffers()[i].copy_(start[i]);
      backward(single, loss_of(run(single, *net, draw_part(*net, kPart, step, rank, job.dtype))));
      if (rank == 0)
        for (const auto& buffer : net->buffers()) kept.push_back(buffer.clone());
    }
    for (size_t i = 0; i < kept.size(); ++i) net->buffers()[i].copy_(kept[i]);
    single.for_each_gradient(net->parameters(), [&](const at::Tensor& gradient) { gradient.mul_(1.0 / parts); });
    optimizer.step();
    optimizer.zero_grad();
  }
  return values(*net);
}

std::vector<Job> split_jobs(int steps) {
  std::vector<Job> jobs;
  for (const auto kind : {Kind::mlp, Kind::cnn, Kind::transformer})
    for (const auto dtype : {at::kFloat, at::kDouble})
      for (const bool adaptive : {true, false}) jobs.push_back({kind, dtype, adaptive, steps});
  return jobs;
}

void expect_bitwise_identical(const std::vector<at::Tensor>& mine, const std::vector<at::Tensor>& expected,
                              const std::string& what) {
  ASSERT_EQ(mine.size(), expected.size());
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_EQ(muster::testing::difference_in_bits(mine[i], expected[i]), "") << what << ", tensor " << i;
}

TEST(ReplicatedParity, TwoThreadsHaveTheBitsOfTheSplitReference) {
  for (const auto& job : split_jobs(20)) {
    const auto expected = train_split(job, 2);
    std::mutex mutex;
    muster::testing::run_threads(2, 0, [&](const Communicator& group) {
      const auto mine = train_on_ranks(job, group);
      const std::lock_guard lock(mutex);
      if (group.rank() == 0 || job.kind != Kind::cnn) expect_bitwise_identical(mine, expected, job.name());
    });
  }
}

TEST(ReplicatedParity, TwoProcessesHaveTheBitsOfTheSplitReference) {
  for (const std::string backend : {"gloo", "shm"}) {
    const auto body = [&](const Communicator& group) {
      EXPECT_EQ(group.backend(), backend);
      for (const auto& job : split_jobs(20)) {
        const auto mine = train_on_ranks(job, group);
        if (group.rank() == 0 || job.kind != Kind::cnn) expect_bitwise_identical(mine, train_split(job, 2), job.name());
      }
    };
    muster::testing::expect_processes(2, body, backend, {.backend = backend});
  }
}

TEST(ReplicatedParity, SharedMemoryHasTheBitsOfMessagesHoweverRanksInterleave) {
  for (const auto& job : split_jobs(3))
    for (const int size : {2, 3}) {
      std::vector<std::vector<at::Tensor>> shared(static_cast<size_t>(size)), sent(shared);
      const auto into = [&](auto& results) {
        return
            [&](const Communicator& group) { results[static_cast<size_t>(group.rank())] = train_on_ranks(job, group); };
      };
      comm::run_thread_world(size, {.seed = 7, .shared_memory = true}, into(shared));
      comm::run_thread_world(size, {.seed = 7}, into(sent));
      for (size_t rank = 0; rank < shared.size(); ++rank)
        expect_bitwise_identical(shared[rank], sent[rank], job.name() + " on rank " + std::to_string(rank));
    }
}

TEST(ReplicatedParity, GradientsAreInTheMemoryThatRanksShare) {
  for (const bool shared : {false, true})
    comm::run_thread_world(2, {.shared_memory = shared}, [&](const Communicator& group) {
      int shared_buffers = 0;
      group.observe(
          [&](const comm::OperationEvent& event) { shared_buffers += event.operation == "allocate_shared_buffer"; });
      const auto net = make_net(Kind::mlp, at::kFloat, 40);
      ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.004, .first_bucket_mb = 0.001});
      backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 0, group.rank(), at::kFloat))));
      EXPECT_EQ(shared_buffers, shared ? 1 : 0);
      std::set<const c10::StorageImpl*> storages;
      for (const auto& parameter : net->parameters()) {
        const auto& storage = parameter.grad().storage();
        EXPECT_FALSE(storage.resizable());
        storages.insert(storage.unsafeGetStorageImpl());
      }
      EXPECT_GT(storages.size(), 1u) << "one per bucket";
    });
}

TEST(ReplicatedParity, MoreRanksAgreeInOneStep) {
  for (const int size : {3, 4})
    for (const auto kind : {Kind::mlp, Kind::cnn, Kind::transformer}) {
      const Job job{kind, at::kDouble, false, 1};
      const auto expected = train_split(job, size);
      muster::testing::run_threads(size, 0, [&](const Communicator& group) {
        const auto mine = train_on_ranks(job, group);
        if (group.rank() != 0) return;
        for (size_t i = 0; i < mine.size(); ++i)
          EXPECT_EQ(muster::testing::difference(mine[i].to(at::kDouble), expected[i].to(at::kDouble), 1e-12, 1e-12), "")
              << job.name() << ", " << size << " ranks, tensor " << i;
      });
    }
}

/// Plain SGD over whole batches of 12, of which each rank has its share.
std::vector<at::Tensor> train_big_batch(Kind kind, const Communicator& group) {
  at::set_num_threads(1);
  const auto net = make_net(kind, at::kDouble, 40);
  ReplicatedModel replicated(*net, group);
  lib::SGD inner(net->parameters(), lib::SGDOptions(0.05));
  optim::FusedStep optimizer(inner, {&replicated});
  const int64_t share = 12 / group.size();
  for (int step = 0; step < 5; ++step) {
    const auto batch = draw_part(*net, 12, step, 0, at::kDouble);
    backward(replicated, loss_of(run(replicated, *net, batch.narrow(0, group.rank() * share, share))));
    optimizer.step();
    optimizer.zero_grad();
  }
  return values(*net);
}

TEST(ReplicatedParity, AnyWorldEqualsTheWholeBatch) {
  for (const auto kind : {Kind::mlp, Kind::transformer}) {
    const auto expected = train_big_batch(kind, Communicator());
    for (const int size : {2, 3, 4})
      muster::testing::run_threads(size, 0, [&](const Communicator& group) {
        const auto mine = train_big_batch(kind, group);
        for (size_t i = 0; i < mine.size(); ++i)
          EXPECT_EQ(muster::testing::difference(mine[i], expected[i], 1e-10, 1e-10), "")
              << size << " ranks, tensor " << i;
      });
  }
}

TEST(ReplicatedParity, OneRankHasTheBitsOfOneProcess) {
  for (const auto& job : split_jobs(5))
    expect_bitwise_identical(train_on_ranks(job, Communicator()), train_split(job, 1), job.name());
}

}  // namespace
}  // namespace muster::parallel
