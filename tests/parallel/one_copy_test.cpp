// The ranks of a host have one copy of a sharded model's parameters in common.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "parallel/replicated_model.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded::one_copy {
namespace {

using Values = std::vector<Tensor>;

std::vector<ShardedOptions> kinds() {
  auto kinds = all_stages();
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full})
    kinds.push_back({.param_dtype = "bf16", .stage = stage});
  return kinds;
}

/// One rank's training, and what it did.
struct Training {
  Training(const comm::Communicator& group, const ShardedOptions& options)
      : group(group), model(*net, group, options), optimizer(adam, {&model}) {}
  Training(const comm::Communicator& shards, const comm::Communicator& replicas, const comm::Communicator& all,
           const ShardedOptions& options)
      : group(all), model(*net, shards, replicas, options), optimizer(adam, {&model}) {}

  /// Two micro-batches, of which the first is not communicated, and an evaluation.
  void step() {
    for (const bool sync : {false, true}) {
      model.set_gradient_sync(sync);
      const auto words = words_of(steps++, group.rank());
      const auto loss = loss_of(forward(model, net, words).to(at::kFloat), words);
      backward(model, loss);
      seen.push_back(loss.detach());
    }
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    seen.push_back(forward(model, net, words_of(0, 0)).clone());
  }
  /// Everything that this rank has seen, and the values in the end. Collective.
  Values results() {
    for (auto& [name, value] : model.full_state(false)) seen.push_back(value);
    return seen;
  }
  auto writing_to_head(const std::function<void()>& write) {
    return [this, write] { optim::write_parameters(&model, {net->head->weight}, write); };
  }

  comm::Communicator group;
  Net net = make_net();
  ShardedModel model;
  torch::optim::AdamW adam{net->parameters(), adamw()};
  optim::FusedStep optimizer;
  Values seen;
  int steps = 0;
};

void expect_same(const Values& mine, const Values& theirs, const std::string& what) {
  ASSERT_EQ(mine.size(), theirs.size()) << what;
  for (size_t i = 0; i < mine.size(); ++i)
    EXPECT_EQ(muster::testing::difference_in_bits(mine[i], theirs[i]), "") << what << ", " << i;
}

ShardedOptions without(ShardedOptions options) {
  options.one_copy_per_host = false;
  return options;
}

std::string text_of(const ShardedOptions& options) {
  return name_of(options) + (options.param_dtype.empty() ? "" : ", bf16") +
         (options.one_copy_per_host ? "" : ", own copies");
}

constexpr const char* kSays = "ranks of a host have one copy of the values of";

TEST(OneCopy, IsHeldOnceAndNothingIsGathered) {
  for (const auto& options : kinds())
    on_seeded_ranks(
        3,
        [&](comm::Communicator group) {
          Training one(group, options), own(group, without(options));
          one.step();
          own.step();
          const auto mine = one.model.stats(), theirs = own.model.stats();
          EXPECT_EQ(mine.gathers, 0) << text_of(options);
          EXPECT_EQ(mine.peak_gathered_bytes, 0) << text_of(options);
          EXPECT_GT(theirs.gathers, 0) << text_of(options);
          if (options.stage != ShardStage::full) {
            EXPECT_LT(mine.held_bytes, theirs.held_bytes) << text_of(options);
          }
          EXPECT_NE(one.model.describe().find(kSays), std::string::npos) << one.model.describe();
          EXPECT_EQ(own.model.describe().find(kSays), std::string::npos) << own.model.describe();
        },
        /*shared_memory=*/true);
  on_seeded_ranks(2, [&](comm::Communicator group) {
    Training apart(group, {});
    apart.step();
    EXPECT_GT(apart.model.stats().gathers, 0) << "ranks that share no memory gather";
    EXPECT_EQ(apart.model.describe().find(kSays), std::string::npos) << apart.model.describe();
  });
}

TEST(OneCopy, GivesTheBitsOfOwnCopies) {
  for (const int world : {2, 3})
    for (const auto& options : kinds()) {
      const auto trained = [&](const ShardedOptions& how, bool shared_memory) {
        std::vector<Values> all(static_cast<size_t>(world));
        on_seeded_ranks(
            world,
            [&](comm::Communicator group) {
              Training training(group, how);
              for (int s = 0; s < 3; ++s) training.step();
              all[group.rank()] = training.results();
            },
            shared_memory);
        return all;
      };
      const auto one = trained(options, true), own = trained(without(options), true), sent = trained(options, false);
      for (int rank = 0; rank < world; ++rank) {
        expect_same(one[rank], own[rank], text_of(options));
        expect_same(one[rank], sent[rank], text_of(options) + ", by messages");
      }
    }
}

TEST(OneCopy, IsOneForEachGroupOfShards) {
  for (const auto& options : kinds())
    on_seeded_ranks(
        4,
        [&](comm::Communicator group) {
          const auto [shards, replicas] = two_by_two(group);
          Training one(shards, replicas, group, options), own(shards, replicas, group, without(options));
          for (int s = 0; s < 2; ++s) {
            one.step();
            // Only these two ranks: the others have a copy of their own.
            if (group.rank() < 2) forward(one.model, one.net, words_of(1, 1));
            own.step();
            if (group.rank() < 2) forward(own.model, own.net, words_of(1, 1));
          }
          EXPECT_EQ(one.model.stats().gathers, 0);
          expect_same(one.results(), own.results(), text_of(options));
        },
        /*shared_memory=*/true);
}

TEST(OneCopy, AGraphOlderThanAStepIsRefusedOnEveryRank) {
  for (const auto& options : kinds())
    on_seeded_ranks(
        3,
        [&](comm::Communicator group) {
          Training training(group, options);
          const auto words = words_of(0, group.rank());
          const auto old = loss_of(forward(training.model, training.net, words).to(at::kFloat), words);
          training.step();
          EXPECT_THROW(backward(training.model, old), c10::Error) << text_of(options);
          training.step();
        },
        /*shared_memory=*/true);
}

TEST(OneCopy, FullValuesAreWrittenBackFromACopy) {
  for (const auto& options : kinds())
    for (const bool rank0_only : {false, true})
      on_seeded_ranks(
          3,
          [&](comm::Communicator group) {
            Training one(group, options), own(group, without(options));
            for (auto* training : {&one, &own}) {
              training->step();
              const auto weight = training->net->head->weight;
              const bool open = !rank0_only || group.rank() == 0 || options.stage != ShardStage::full;
              const auto write = [&] {
                const at::NoGradGuard no_grad;
                if (open) weight.mul_(1.5), weight[0].fill_(group.rank());
              };
              training->model.summon_full_params(write, {.rank0_only = rank0_only});
              if (!rank0_only) {
                EXPECT_EQ(muster::testing::thrown_id(
                              [&] { training->model.summon_full_params(write, {.writeback = false}); }),
                          "MU190");
              }
              training->step();
              EXPECT_EQ(training->model.stats().temporary_bytes, 0);
            }
            expect_same(one.results(), own.results(), text_of(options));
          },
          /*shared_memory=*/true);
}

/// All that shows the values of a model whose update has failed.
void expect_torn(Training& training) {
  EXPECT_EQ(muster::testing::thrown_id([&] { forward(training.model, training.net, words_of(0, 0)); }), "MU540");
  EXPECT_EQ(muster::testing::thrown_id([&] { training.model.full_state(false); }), "MU540");
  EXPECT_EQ(muster::testing::thrown_id([&] { training.model.shards(); }), "MU540");
  EXPECT_EQ(muster::testing::thrown_id([&] { training.model.summon_full_params([] {}); }), "MU540");
}

TEST(OneCopy, IsTornOnAllRanksIfAnUpdateFailsOnOne) {  // MU540, MU541
  for (const auto& options : kinds())
    on_seeded_ranks(
        3,
        [&](comm::Communicator group) {
          Training training(group, options);
          training.step();
          const auto update = training.writing_to_head([&] {
            if (group.rank() == 1) throw std::runtime_error("the disk is on fire");
          });
          if (group.rank() == 1) EXPECT_THROW(update(), std::runtime_error);
          else EXPECT_EQ(muster::testing::thrown_id(update), "MU541");
          expect_torn(training);
        },
        /*shared_memory=*/true);
}

TEST(OneCopy, AWriterWhoseRanksHaveOwnCopiesGoesOn) {
  on_seeded_ranks(
      2,
      [&](comm::Communicator group) {
        Training training(group, {.one_copy_per_host = false});
        const auto update = training.writing_to_head([&] {
          if (group.rank() == 1) throw std::runtime_error("the disk is on fire");
        });
        if (group.rank() == 1) EXPECT_THROW(update(), std::runtime_error);
        else update();
        training.step();
      },
      /*shared_memory=*/true);
}

/// Ranks that are processes; how each ended.
std::vector<muster::testing::RankResult> in_processes(int size, const std::function<void(comm::Communicator)>& body,
                                                      std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return muster::testing::run_processes(
      size,
      [&](const ClusterEnvironment& cluster) {
        at::set_num_threads(1);
        body(comm::connect(cluster, {.backend = "shm", .timeout = timeout}));
        return ::testing::Test::HasFailure() ? 1 : 0;
      },
      {.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()}});
}

void expect_all_well(const std::vector<muster::testing::RankResult>& results) {
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

TEST(OneCopy, OfProcessesGivesTheBitsOfOwnCopies) {
  expect_all_well(in_processes(3, [](const comm::Communicator& group) {
    for (const auto& options : kinds()) {
      Training one(group, options), own(group, without(options));
      for (int s = 0; s < 2; ++s) {
        one.step();
        own.step();
        for (auto* training : {&one, &own})
          training->model.summon_full_params([&] {
            const at::NoGradGuard no_grad;
            training->net->head->weight.add_(1);
          });
      }
      EXPECT_EQ(one.model.stats().gathers, 0);
      expect_same(one.results(), own.results(), text_of(options));
    }
  }));
}

bool faulted(const muster::testing::RankResult& result) {  // a sanitizer ends the process itself
  return result.signal == SIGSEGV || result.output.find("SEGV") != std::string::npos;
}

TEST(OneCopy, AStrayWriteOfAProcessFaultsWithWords) {  // MU162
  const auto results = in_processes(2, [](const comm::Communicator& group) {
    Training training(group, {.stage = ShardStage::optimizer});
    training.step();
    group.barrier();
    *static_cast<float*>(const_cast<void*>(training.net->head->weight.const_data_ptr())) = 1;
  });
  for (const auto& result : results) {
    EXPECT_TRUE(faulted(result)) << result.output;
    EXPECT_NE(result.output.find("MU162: a raw pointer"), std::string::npos) << result.output;
  }
}

/// Reads that memory in a forked child: what the child says, and its status.
std::pair<std::string, int> read_in_child(const at::Tensor& tensor) {
  const auto* value = static_cast<const volatile float*>(tensor.const_data_ptr());
  int pipe[2], status = 0;
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    ::_exit(*value == 0 ? 77 : 78);
  }
  ::close(pipe[1]);
  std::string said;
  char text[256];
  for (ssize_t bytes = 0; (bytes = ::read(pipe[0], text, sizeof text)) > 0;) said.append(text, bytes);
  ::close(pipe[0]);
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return {said, status};
}

void expect_told(const at::Tensor& tensor) {
  const auto [said, status] = read_in_child(tensor);
  // AddressSanitizer makes of the fault an exit of its own.
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) >= 77) << status;
  EXPECT_NE(said.find("a forked child uses a parameter or a gradient"), std::string::npos) << said;
}

TEST(OneCopy, AForkedChildIsToldThatItHasNoParameters) {
  expect_all_well(in_processes(2, [](const comm::Communicator& group) {
    Training training(group, {.stage = ShardStage::optimizer});
    group.barrier();
    expect_told(training.net->head->weight);
    group.barrier();
  }));
}

TEST(OneCopy, AForkedChildIsToldThatItHasNoGradientsOfReplicas) {
  expect_all_well(in_processes(2, [](const comm::Communicator& group) {
    torch::nn::Linear net(3, 2);
    ReplicatedModel model(*net, group);
    model.enter_forward();
    const auto loss = net(torch::ones({1, 3})).sum();
    model.leave_forward();
    backward(model, loss);
    expect_told(net->weight.grad());
    group.barrier();
  }));
}

TEST(OneCopy, OtherFaultsGoToTheHandlerThatWasThereBefore) {
  const auto results = in_processes(2, [](const comm::Communicator& group) {
    struct sigaction mine = {};
    mine.sa_handler = [](int) { ::_exit(77); };
    ::sigaction(SIGSEGV, &mine, nullptr);
    Training training(group, {.stage = ShardStage::optimizer});
    group.barrier();
    *static_cast<volatile int*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) = 1;
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 77) << result.output;
    EXPECT_EQ(result.output.find("MU162"), std::string::npos) << result.output;
  }
}

TEST(OneCopy, IsTornIfAProcessDiesInAnUpdate) {
  const auto results = in_processes(3, [](const comm::Communicator& group) {
    Training training(group, {});
    training.step();
    EXPECT_EQ(muster::testing::thrown_id(training.writing_to_head([&] {
                if (group.rank() == 1) ::raise(SIGKILL);
              })),
              "MU052");
    expect_torn(training);
  });
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) EXPECT_TRUE(results[rank].ok()) << results[rank].output;
}

TEST(OneCopy, IsTornIfAProcessStopsInAnUpdateAndResumesTooLate) {
  expect_all_well(in_processes(
      2,
      [](const comm::Communicator& group) {
        Training training(group, {});
        training.step();
        auto pids = torch::full({1}, static_cast<int64_t>(::getpid()), torch::kLong);
        pids = group.all_gather(pids).flatten();
        const auto update = training.writing_to_head([&] {
          if (group.rank() == 1) ::raise(SIGSTOP);
        });
        if (group.rank() == 1) {
          update();  // the other rank had written before it waited for this one, so here all is whole
          EXPECT_EQ(muster::testing::thrown_id([&] { training.step(); }), "MU051");
          return;
        }
        EXPECT_EQ(muster::testing::thrown_id(update), "MU051");
        expect_torn(training);
        ::kill(static_cast<pid_t>(pids[1].item<int64_t>()), SIGCONT);
      },
      std::chrono::seconds(3)));
}

}  // namespace
}  // namespace muster::parallel::sharded::one_copy
