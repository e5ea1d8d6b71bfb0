#include "comm/pairwise.h"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/disagreements.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/testing/gtest.h"

namespace muster::comm {
namespace {

void expect_mismatches_of_threads(int world, uint64_t runs, bool shared_memory) {
  for (uint64_t run = 0; run < runs; ++run) {
    for (const auto& one : disagreements()) {
      int odd = static_cast<int>(run) % world;
      std::vector<std::string> messages(world);
      const ThreadWorldOptions options{.seed = run % 10 == 9 ? 0 : run + 1, .shared_memory = shared_memory};
      run_thread_world(world, options, [&](const Communicator& comm) {
        messages[comm.rank()] = mismatch_seen(comm.rank() == odd ? one.odd : one.usual, comm);
      });
      for (int rank = 0; rank < world; ++rank)
        expect_both_sides(
            one, messages[rank],
            "rank " + std::to_string(rank) + " of " + std::to_string(world) + ", seed " + std::to_string(run + 1));
    }
  }
}

TEST(Pairwise, MismatchesAreErrorsOnAllThreadsHoweverTheyInterleave) {
  for (int world : {2, 3}) expect_mismatches_of_threads(world, 100, false);
}

TEST(SharedMemory, TheSameMismatchesAreErrorsOnAllThreads) {
  for (int world : {2, 3}) expect_mismatches_of_threads(world, 30, true);
}

class ProcessMismatch : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(ProcessMismatch, MismatchesAreErrorsOnAllProcesses) {
  const auto& [world, backend] = GetParam();
  testing::expect_processes(
      world,
      [](const Communicator& comm) {
        std::vector<int> everyone;
        for (int rank = 0; rank < comm.size(); ++rank) everyone.push_back(rank);
        const auto kinds = static_cast<int>(disagreements().size());
        // Three ranks of gloo may wait for each other's last words for a second.
        const int turns = comm.size() == 2 || std::getenv("MUSTER_TEST_FULL") ? comm.size() : 1;
        for (int run = 0; run < kinds * turns; ++run) {
          const auto& one = disagreements()[run % kinds];
          Communicator group = comm.subgroup(everyone);
          const int odd = (run + run / kinds) % comm.size();
          std::string message = mismatch_seen(comm.rank() == odd ? one.odd : one.usual, group);
          expect_both_sides(one, message, "rank " + std::to_string(comm.rank()));
          EXPECT_EQ(mismatch_seen([](const Communicator& c) { c.barrier(); }, group).substr(0, 5), "MU050")
              << "the group is over";
        }
        comm.barrier();
      },
      "", {.backend = backend});
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessMismatch,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values("gloo", "shm")));

/// The other rank of two, which sends nothing but frames made by hand.
class LyingTransport final : public Transport {
 public:
  explicit LyingTransport(const Frame& frame) : frame_(frame) {}
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  void send_frame(int, const Frame&, TimePoint) override {}
  void recv_frame(int, Frame& frame, TimePoint) override { frame = frame_; }
  Request send(int, const void*, std::size_t, int) override { return std::make_unique<Done>(); }
  Request recv(int, void* data, std::size_t bytes, int) override {
    std::memset(data, 0x5a, bytes);
    return std::make_unique<Done>();
  }
  void abort(const std::string&) noexcept override {}
  void close() noexcept override {}
  std::unique_ptr<Transport> split(const std::vector<int>&, const std::string&) override { return nullptr; }

 private:
  struct Done final : Transfer {
    void wait(TimePoint) override {}
  };
  Frame frame_;
};

/// Runs `operation` on rank 0 against a rank 1 whose honest frame `theirs`, with payload of `bytes`, is changed by
/// `lie`.
std::string answer_to(Operation operation, const Operation& theirs, uint64_t bytes,
                      const std::function<void(Header&)>& lie) {
  const bool sends_tensor = theirs.in.defined();
  Header header = make_header(theirs, sends_tensor ? &theirs.in : nullptr, bytes);
  lie(header);
  Frame frame{};
  write_header(frame, header);
  try {
    make_pairwise(std::make_unique<LyingTransport>(frame))->run(operation, "world", TimePoint::max());
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Pairwise, WhatAHeaderAnnouncesBoundsWhatIsWritten) {
  const at::Tensor one = at::ones({1}), many = at::ones({50'000});
  const Operation gather{.kind = OperationKind::all_gatherv, .in = one};
  const Operation barrier{.kind = OperationKind::barrier};
  const Operation reduce{.kind = OperationKind::all_reduce, .out = many};
  const Operation bytes{.kind = OperationKind::all_gather_bytes, .in = at::ones({1}, at::kByte)};
  Operation cast{.kind = OperationKind::broadcast_bytes, .root = 1}, cast_there = cast;
  cast_there.in = at::ones({1}, at::kByte);
  EXPECT_EQ(answer_to(gather, gather, 4, [](Header&) {}), "no error");
  EXPECT_EQ(answer_to(barrier, barrier, 0, [](Header&) {}), "no error");
  EXPECT_EQ(answer_to(cast, cast_there, 1, [](Header&) {}), "no error");
  const std::string contradicts = "parts contradict each other", nothing_due = "a tensor where none is due",
                    due = "nothing where a tensor is due";
  auto expect = [](const std::string& words, const std::string& message) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect(contradicts, answer_to(gather, gather, 3000, [](Header&) {}));
  expect(contradicts, answer_to(gather, gather, 1 << 20, [](Header&) {}));
  expect(contradicts, answer_to(bytes, bytes, 0, [](Header&) {}));
  expect(due, answer_to(gather, gather, 4, [](Header& h) { h.sends_tensor = 0; }));
  expect(due, answer_to(cast, cast, 0, [](Header&) {}));
  expect(nothing_due, answer_to(barrier, barrier, 3000, [](Header&) {}));
  expect("sent 3000 bytes for the 0", answer_to(reduce, reduce, 3000, [](Header&) {}));
  const Operation to_root{.kind = OperationKind::reduce, .root = 1, .out = many};
  expect("sent 3000 bytes for the 0", answer_to(to_root, to_root, 3000, [](Header&) {}));
}

TEST(Pairwise, SendsThatMeetSendsAreErrors) {
  auto errors =
      run_thread_world(2, {.seed = 4}, [](const Communicator& comm) { comm.send(zeros({3}), 1 - comm.rank()); });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    try {
      std::rethrow_exception(error);
    } catch (const CommError& thrown) {
      EXPECT_EQ(thrown.id(), "MU050");
      EXPECT_NE(std::string(thrown.what()).find("rank 0 called send to rank 1 of float32 [3]"), std::string::npos)
          << thrown.what();
    }
  }
}

/// Rank 1 of three dies at its step `step` of the operations that `turn` does; the ids of what the ranks threw.
std::vector<std::string> ids_after_death(int64_t step, const std::function<void(const Communicator&, int turn)>& turn) {
  std::vector<std::string> ids(3);
  run_thread_world(3, {.kill_rank = 1, .kill_step = step, .seed = 50 + static_cast<uint64_t>(step)},
                   [&](const Communicator& comm) {
                     try {
                       for (int count = 0; count < 20; ++count) turn(comm, count);
                     } catch (const CommError& error) {
                       ids[comm.rank()] = error.id();
                     }
                   });
  return ids;
}

TEST(Pairwise, AKilledRankEndsTheOthersAtAnyStep) {
  const std::vector<std::pair<const char*, std::function<void(const Communicator&, int)>>> operations{
      {"all_reduce",
       [](const Communicator& comm, int turn) {
         at::Tensor tensor = at::ones({turn % 2 ? 5 : 50'000});
         comm.all_reduce(tensor);
         EXPECT_EQ(tensor[0].item<float>(), 3.f);
       }},
      {"broadcast",
       [](const Communicator& comm, int turn) {
         at::Tensor tensor = at::full({50'000}, comm.rank());
         comm.broadcast(tensor, turn % 3);
         EXPECT_TRUE(tensor.eq(turn % 3).all().item<bool>());
       }},
      {"reduce", [](const Communicator& comm, int turn) {
         at::Tensor tensor = at::ones({50'000});
         comm.reduce(tensor, turn % 3);
         EXPECT_TRUE(tensor.eq(comm.rank() == turn % 3 ? 3 : 1).all().item<bool>());
       }}};
  for (const auto& [name, turn] : operations) {
    for (int64_t step = 1; step < 40; ++step) {
      const auto ids = ids_after_death(step, turn);
      EXPECT_EQ(ids[1], "MU063") << name << ", step " << step;
      for (int rank : {0, 2}) EXPECT_EQ(ids[rank], "MU052") << name << ", rank " << rank << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace muster::comm
