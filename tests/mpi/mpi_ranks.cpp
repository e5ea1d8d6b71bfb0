// A rank that mpirun starts for mpi_test.py, which names the case. Each rank leaves how its case ended in a file.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/disagreements.h"
#include "comm/every_operation.h"
#include "comm/group.h"
#include "comm/mpi/library.h"
#include "comm/samples.h"
#include "comm/wait_policy.h"
#include "muster/comm/mpi.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

/// Waits for another rank's deed, a minute at most.
template <class Done>
bool in_time(Done done) {
  const auto deadline = TimePoint::clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (TimePoint::clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class MpiRanks : public ::testing::Test {
 protected:
  MpiRanks() { at::set_num_threads(1); }
  /// A rank that ends after a failure may take the others with it, so each waits until all have said how they ended.
  void TearDown() override {
    write("rank" + std::to_string(rank_), HasFailure() ? "failed" : "ok");
    for (int rank = 0; rank < size_; ++rank)
      EXPECT_TRUE(in_time([&] { return std::filesystem::exists(folder_ / ("rank" + std::to_string(rank))); })) << rank;
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / ("." + name + std::to_string(rank_))) << text;
    std::filesystem::rename(folder_ / ("." + name + std::to_string(rank_)), folder_ / name);
  }
  Communicator connected(GroupOptions options = {}) const {
    const char* backend = ::getenv("MUSTER_TEST_BACKEND");
    options.backend = backend ? backend : "mpi";
    return connect(read_cluster_environment(), options);
  }

  const std::filesystem::path folder_ = ::getenv("MUSTER_TEST_FOLDER");
  const int rank_ = std::stoi(::getenv("OMPI_COMM_WORLD_RANK"));
  const int size_ = std::stoi(::getenv("OMPI_COMM_WORLD_SIZE"));
};

TEST_F(MpiRanks, GiveTheBitsOfGloo) {
  const Communicator mpi = connected(), gloo = connect(read_cluster_environment(), {.backend = "gloo"});
  EXPECT_EQ(mpi.backend(), "mpi");
  EXPECT_EQ(mpi.backend_reason(), "");
  for (int64_t elements : {0, 1, 13, 70'001, 300'000})
    for (auto dtype : kAllDtypes) {
      if ((elements > 1000 && dtype != at::kFloat && dtype != at::kBFloat16) ||
          (elements > 100'000 && dtype != at::kFloat))
        continue;
      const auto ours = results_of(mpi, elements, dtype), theirs = results_of(gloo, elements, dtype);
      ASSERT_EQ(ours.size(), theirs.size());
      for (std::size_t i = 0; i < theirs.size(); ++i)
        ASSERT_EQ(difference_in_bits(ours[i], theirs[i]), "") << i << " of " << elements << c10::toString(dtype);
    }
  const std::string text(9000, static_cast<char>('a' + rank_));
  EXPECT_EQ(mpi.all_gather_bytes(text), gloo.all_gather_bytes(text));
}

TEST_F(MpiRanks, SumsOfSmallIntegersWrapAround) {
  const Communicator mpi = connected();
  for (const auto dtype : {at::kChar, at::kByte, at::kShort, at::kInt}) {
    const at::Tensor large = at::full({70'001},
                                      dtype == at::kShort ? 30'000
                                      : dtype == at::kInt ? 1 << 30
                                                          : 100,
                                      dtype);
    const at::Tensor wanted = (large * size_).contiguous(), sum = large.clone();
    mpi.all_reduce(sum);
    EXPECT_EQ(difference_in_bits(sum, wanted), "") << c10::toString(dtype);
  }
}

TEST_F(MpiRanks, AGroupThatARankHasLeftIsNoticed) {
  Communicator left = connected({.timeout = std::chrono::minutes(5)});
  left.all_reduce(at::ones({300'000}));
  if (rank_ == 1) left = Communicator();
  else EXPECT_EQ(thrown_id([&] { left.all_reduce(at::ones({300'000})); }), "MU052");
}

/// None of their messages comes to a new one, which may have the number of one that was freed.
TEST_F(MpiRanks, CommunicatorsMayBeMadeAndLeftInALoop) {
  const Communicator kept = connected();
  for (int turn = 0; turn < 300; ++turn) {
    const Communicator one = kept.duplicate();
    const at::Tensor tensor = at::ones({1000});
    one.all_reduce(tensor);
    ASSERT_EQ(tensor[999].item<float>(), static_cast<float>(size_));
  }
}

TEST_F(MpiRanks, CommunicatorsOfTheProgramAreChecked) {
  const Communicator all = connected();
  EXPECT_EQ(thrown_id([] { connect(MPI_COMM_NULL, {}); }), "MU557");
  if (rank_ == 1) return;
  EXPECT_EQ(thrown_id([] { connect(MPI_COMM_WORLD, {.rendezvous_timeout = std::chrono::seconds(2)}); }), "MU058");
}

TEST_F(MpiRanks, OverlapInGroupsAndThreads) {
  const Communicator whole = connected(), again = connected(), ends = whole.subgroup({0, size_ - 1});
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 30; ++i) {
    tensors.push_back(at::full({i % 3 ? 9 : 200'000}, rank_ + i, at::kFloat));
    works.push_back((i % 2 ? whole : again).start_all_reduce(tensors.back()));
  }
  std::thread other([&] {
    for (int i = 0; i < 200 && ends.size() == 2; ++i)
      EXPECT_EQ(ends.all_gather(at::full({3}, rank_ + i))[1][2].item<int>(), size_ - 1 + i);
  });
  for (int i = 0; i < 30; ++i) {
    works[i].wait();
    EXPECT_EQ(tensors[i][8].item<float>(), static_cast<float>(size_ * i + size_ * (size_ - 1) / 2)) << i;
  }
  other.join();
  const Communicator part = ends.size() == 2 ? ends.duplicate() : ends;
  EXPECT_EQ(part.all_gather_bytes("x").size(), static_cast<std::size_t>(part.size()));
}

TEST_F(MpiRanks, ManySmallOperationsLoseNothing) {
  const Communicator comm = connected({.timeout = std::chrono::seconds(20)});
  for (int turn = 0; turn < 500; ++turn) {
    at::Tensor small = at::ones({3}), large = at::full({turn % 5 ? 9 : 40'000}, comm.rank());
    Work first = comm.start_all_reduce(small), second = comm.start_broadcast(large, turn % size_);
    first.wait();
    second.wait();
    ASSERT_EQ(small[2].item<float>(), static_cast<float>(size_));
    ASSERT_EQ(large[8].item<int64_t>(), turn % size_);
  }
}

TEST_F(MpiRanks, MismatchesAreErrorsOnAll) {
  const Communicator comm = connected();
  for (std::size_t run = 0; run < disagreements().size(); ++run) {
    const auto& one = disagreements()[run];
    const Communicator group = comm.duplicate();
    const int odd = static_cast<int>(run) % size_;
    expect_both_sides(one, mismatch_seen(rank_ == odd ? one.odd : one.usual, group), "rank " + std::to_string(rank_));
    EXPECT_EQ(thrown_id([&] { group.barrier(); }), "MU050") << "the group is over";
  }
  comm.barrier();
}

TEST_F(MpiRanks, AStoppedRankIsATimeOutAndItsLateMessagesDoNoHarm) {
  const Communicator comm = connected({.timeout = std::chrono::milliseconds(700)});
  const auto stopped =
      static_cast<pid_t>(comm.all_gather(at::full({1}, ::getpid(), at::kLong))[size_ - 1].item<int64_t>());
  const at::Tensor late = at::ones({300'000});
  comm.barrier();
  if (rank_ == size_ - 1) ::raise(SIGSTOP);
  const std::string message = thrown([&] { comm.all_reduce(late); });
  const at::Tensor after = late.clone();
  if (rank_ < size_ - 1) {
    write("gave_up" + std::to_string(rank_), "");
    EXPECT_NE(message.find("for rank " + std::to_string(size_ - 1) + " in all_reduce(sum) of float32 [300000]"),
              std::string::npos)
        << message;
  }
  if (rank_ == 0) {
    EXPECT_TRUE(message.starts_with("MU051: rank 0 waited")) << message;
    for (int rank = 0; rank < size_ - 1; ++rank)
      EXPECT_TRUE(in_time([&] { return std::filesystem::exists(folder_ / ("gave_up" + std::to_string(rank))); }));
    ::kill(stopped, SIGCONT);
  }
  EXPECT_TRUE(message.starts_with("MU051: rank ")) << message;
  EXPECT_EQ(thrown_id([&] { comm.barrier(); }), "MU051");
  EXPECT_EQ(difference_in_bits(late, after), "");
}

TEST_F(MpiRanks, AbortReachesRanksThatWait) {
  const Communicator comm = connected(), other = comm.duplicate();
  for (const auto& group : {comm, other}) {
    group.barrier();
    if (rank_ == 1) {
      std::thread([&] { group.abort("enough"); }).join();
    }
    const std::string message = thrown([&] { group.all_reduce(at::ones({group.name() == "world" ? 3 : 300'000})); });
    EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
  }
}

TEST_F(MpiRanks, AKilledRankEndsTheJob) {
  const Communicator comm = connected({.timeout = std::chrono::minutes(5)});
  comm.barrier();
  if (rank_ == 1) ::raise(SIGKILL);
  comm.barrier();
}

TEST_F(MpiRanks, AnEarlyExitEndsTheJob) {
  const Communicator comm = connected({.timeout = std::chrono::minutes(5)});
  comm.barrier();
  if (rank_ == 1) ::exit(3);
  const std::string message = thrown([&] { comm.all_reduce(at::ones({200'000})); });
  write("rank0", message);
}

TEST_F(MpiRanks, AnEarlyExitWithoutErrorIsTold) {
  const Communicator comm = connected({.timeout = std::chrono::minutes(5)});
  comm.barrier();
  if (rank_ == 1) ::exit(0);
  const std::string message = thrown([&] { comm.all_reduce(at::ones({rank_ ? 3 : 200'000})); });
  write("told" + std::to_string(rank_), message);
  write("rank1", "ok");
}

TEST_F(MpiRanks, AGroupMayOutliveMain) {
  static const Communicator comm = connected();
  at::Tensor ones = at::ones({5});
  comm.start_all_reduce(ones).wait();
  EXPECT_EQ(ones[4].item<float>(), static_cast<float>(size_));
}

TEST_F(MpiRanks, AForkedProcessLeavesMpiAlone) {
  const Communicator comm = connected();
  comm.barrier();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string message = thrown([&] { comm.barrier(); });
    ::exit(message.starts_with("MU571") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  at::Tensor ones = at::ones({100'000});
  comm.all_reduce(ones);
  EXPECT_EQ(ones[7].item<float>(), static_cast<float>(size_));
}

/// A program that initialises MPI itself, at this level of threads, and ends it.
class Initialised {
 public:
  explicit Initialised(int level) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, level, &provided);
    EXPECT_EQ(provided, level);
  }
  Initialised(const Initialised&) = delete;
  Initialised& operator=(const Initialised&) = delete;
  ~Initialised() { MPI_Finalize(); }
};

TEST_F(MpiRanks, AProgramWithOneThreadOfMpi) {
  const Initialised mpi(MPI_THREAD_SINGLE);
  const Communicator comm = connected({.timeout = std::chrono::seconds(30)});
  EXPECT_TRUE(comm.backend_reason().starts_with("operations run in the caller's thread")) << comm.backend_reason();
  at::Tensor ones = at::ones({200'000});
  Work work = comm.start_all_reduce(ones);
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(ones[7].item<float>(), static_cast<float>(size_));
  const Communicator other = comm.duplicate();
  comm.barrier();  // an abort reaches ranks that still make the other group
  std::thread([&] {
    const std::string message = thrown([&] { other.internal("saving").barrier(); });
    for (const char* words : {"cannot take part in the library's barrier for saving, operation 0 of group world/0",
                              "the program has initialised MPI (MPI_Init, MPI_Init_thread) with MPI_THREAD_SINGLE",
                              "an asynchronous save, or a thread of the program, needs MPI_THREAD_SERIALIZED",
                              "call MPI_Init_thread with MPI_THREAD_MULTIPLE", "save without .asynchronous"})
      EXPECT_TRUE(message.starts_with("MU557: rank ") && message.find(words) != std::string::npos) << message;
    comm.abort("enough");
  }).join();
  EXPECT_EQ(thrown_id([&] { comm.barrier(); }), "MU053");
}

TEST_F(MpiRanks, AProgramThatMakesOneCallAtATime) {
  const Initialised mpi(MPI_THREAD_SERIALIZED);
  const Communicator comm = connected(), other = comm.duplicate();
  EXPECT_EQ(comm.backend_reason(), "one call of MPI at a time: MPI_THREAD_SERIALIZED");
  at::Tensor first = at::ones({200'000}), second = at::ones({200'000});
  Work one = (rank_ % 2 ? comm : other).start_all_reduce(rank_ % 2 ? first : second);
  Work two = (rank_ % 2 ? other : comm).start_all_reduce(rank_ % 2 ? second : first);
  two.wait();
  one.wait();
  EXPECT_EQ(first[7].item<float>() + second[9].item<float>(), 2.f * static_cast<float>(size_));
}

TEST_F(MpiRanks, SomeOfTheRanks) {
  const Initialised mpi(MPI_THREAD_MULTIPLE);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank_ % 2, -rank_, &part);  // in reverse order
  {
    const Communicator comm = connect(part);
    EXPECT_EQ(comm.size(), (size_ + 1 - rank_ % 2) / 2);
    if (comm.size() > 1) {
      EXPECT_EQ(comm.all_gather(at::full({1}, rank_))[0][0].item<int>(), size_ - 2 + rank_ % 2);
    }
    int sum = 0;
    MPI_Allreduce(&rank_, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(sum, size_ * (size_ - 1) / 2);
    const auto cluster = read_cluster_environment(Environment::of_process(), mpi_ranks(part));
    EXPECT_EQ(cluster.world_size, comm.size());
    EXPECT_EQ(cluster.rank, comm.rank());
    EXPECT_EQ(cluster.local_rank, comm.rank());
    const Communicator whole = connect(MPI_COMM_WORLD);
    EXPECT_EQ(whole.all_gather_bytes("x").size(), static_cast<std::size_t>(size_));
  }
  MPI_Comm_free(&part);
}

TEST_F(MpiRanks, AnotherPlaceIsRefused) {
  auto cluster = read_cluster_environment();
  cluster.rank = (rank_ + 1) % size_;
  EXPECT_EQ(thrown_id([&] { (void)connect(cluster, {.backend = "mpi"}); }), "MU569");
}

}  // namespace
}  // namespace muster::comm

int main(int count, char** words) {
  ::testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
