#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/every_operation.h"
#include "comm/operation.h"
#include "comm/pairwise.h"
#include "comm/samples.h"
#include "comm/shared_memory/cores.h"
#include "comm/shared_memory/reduction.h"
#include "comm/shared_tensor.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

class SharedProduct : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t elements() const { return std::get<1>(GetParam()); }
};

TEST_P(SharedProduct, GivesTheBitsOfMessages) {
  const uint64_t seed = elements() > 1000 ? 0 : 1 + static_cast<uint64_t>(world() * 10 + elements());
  // The large ones take the time of all others together.
  const bool in_every_dtype = elements() < 1000 || std::getenv("MUSTER_TEST_FULL");
  for (auto dtype : kAllDtypes) {
    if (!in_every_dtype && dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kLong) continue;
    SCOPED_TRACE(c10::toString(dtype));
    std::vector<std::vector<at::Tensor>> shared(world()), sent(world());
    const auto into = [&](auto& results) {
      return [&, dtype](const Communicator& comm) { results[comm.rank()] = results_of(comm, elements(), dtype); };
    };
    for (const auto& error : run_thread_world(world(), {.seed = seed, .shared_memory = true}, into(shared)))
      if (error) std::rethrow_exception(error);
    run_thread_world(world(), {.seed = seed}, into(sent));
    for (int rank = 0; rank < world(); ++rank) {
      ASSERT_EQ(shared[rank].size(), sent[rank].size());
      for (std::size_t i = 0; i < sent[rank].size(); ++i)
        ASSERT_EQ(difference_in_bits(shared[rank][i], sent[rank][i]), "") << "result " << i << " on rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedProduct,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 7),
                                            ::testing::Values<int64_t>(0, 1, 13, 900, 70'001)));

TEST(SharedMemory, ManyChunksKeepTheirOrder) {
  for (int world : {2, 3})
    run_thread_world(world, {.shared_memory = true}, [&](const Communicator& comm) {
      constexpr int64_t kElements = 1'000'003;
      at::Tensor expected = values(0, kElements, at::kFloat);
      for (int rank = 1; rank < world; ++rank) expected.add_(values(rank, kElements, at::kFloat));
      for (int turn = 0; turn < 3; ++turn) {
        at::Tensor sum = values(comm.rank(), kElements, at::kFloat);
        comm.all_reduce(sum);
        EXPECT_EQ(difference_in_bits(sum, expected), "");
        comm.broadcast(sum, turn % world);
        EXPECT_EQ(difference_in_bits(comm.all_gather(sum)[world - 1], expected), "");
      }
    });
}

TEST(SharedMemory, SmallestAndLargestOfTwoZerosIsThatOfTheFirstRank) {
  for (const bool shared : {false, true})
    for (int64_t elements : {1, 7, 70'001})
      run_thread_world(3, {.shared_memory = shared}, [&](const Communicator& comm) {
        const at::Tensor zeros = at::full({elements}, comm.rank() == 1 ? 0.0 : -0.0);
        for (auto op : {ReduceOp::min, ReduceOp::max}) {
          at::Tensor result = zeros.clone();
          comm.all_reduce(result, op);
          EXPECT_EQ(difference_in_bits(result, at::full({elements}, -0.0)), "") << name_of(op);
        }
      });
}

TEST(SharedMemory, ATensorOfTheGroupIsReducedWhereverItsPartsAre) {
  for (uint64_t seed : {1, 2, 3, 4, 5})
    run_thread_world(3, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
      const auto access = seed % 2 ? PeerAccess::write : PeerAccess::read;
      const auto zeros = [&](int64_t elements) { return shared_zeros(comm, elements, at::kFloat, access); };
      at::Tensor first = zeros(100'000), second = zeros(100'000);
      EXPECT_FALSE(first.storage().resizable());
      EXPECT_EQ(first.count_nonzero().item<int64_t>(), 0);
      // Different places on different ranks.
      for (const at::Tensor& tensor : {first.narrow(0, 0, 50'000), first.narrow(0, comm.rank() * 10'000, 50'000),
                                       (comm.rank() ? first : second).narrow(0, 50'000, 50'000),
                                       comm.rank() == 1 ? at::empty({50'000}) : first.narrow(0, 7, 50'000)}) {
        comm.all_reduce(tensor.fill_(comm.rank() + 1));
        EXPECT_EQ(tensor.eq(6).sum().item<int64_t>(), 50'000);
      }
      first = at::Tensor();
      comm.all_reduce(second.fill_(2), ReduceOp::mean);
      EXPECT_EQ(second.eq(2).sum().item<int64_t>(), 100'000);
      const std::string message =
          thrown([&] { shared_zeros(comm, 5, at::kFloat, comm.rank() == 1 ? PeerAccess::write : PeerAccess::read); });
      EXPECT_TRUE(message.starts_with("MU050")) << message;
      EXPECT_NE(message.find("results in shared memory"), std::string::npos) << message;
    });
}

TEST(SharedMemory, ReducesAsLibTorchDoes) {
  for (auto dtype : kAllDtypes)
    for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product})
      for (int count : {2, 3, 5})
        for (int64_t elements : {1, 7, 1024, 2500}) {
          if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
          std::vector<at::Tensor> terms, copies;
          std::vector<const void*> memory;
          for (int term = 0; term < count; ++term) {
            terms.push_back(values(term, elements, dtype));
            copies.push_back(terms.back().clone());
            memory.push_back(terms.back().const_data_ptr());
          }
          at::Tensor expected = copies[0].clone(), copy = at::empty({elements}, dtype);
          if (op == ReduceOp::min || op == ReduceOp::max)
            for (const auto& term : copies)
              expected = op == ReduceOp::min ? at::minimum(expected, term) : at::maximum(expected, term);
          else reduce_terms(expected, copies, 0, op);
          // In place, as in an operation.
          void* const outs[] = {terms[1].mutable_data_ptr(), copy.mutable_data_ptr()};
          const bool past_caches = elements == 2500;
          reduce_memory(outs, memory, static_cast<std::size_t>(elements), dtype, op, past_caches);
          // Of two zeros LibTorch takes the one or the other.
          ASSERT_EQ(difference_in_bits(terms[1] + 0, expected + 0), "") << c10::toString(dtype) << " of " << count;
          ASSERT_EQ(difference_in_bits(copy, terms[1]), "");
        }
}

template <class T>
void expect_sums_of_all_values(at::ScalarType dtype, std::initializer_list<unsigned> others) {
  constexpr std::size_t kAll = 65'536;
  const auto of_bits = [](std::size_t bits) { return T(static_cast<uint16_t>(bits), T::from_bits()); };
  std::vector<T> all, other(kAll), sum(kAll);
  for (std::size_t bits = 0; bits < kAll; ++bits) all.push_back(of_bits(bits));
  // From the second on, each value has its other neighbour, and none is aligned as two are.
  for (const std::size_t begin : {0, 1})
    for (const unsigned bits : others) {
      other.assign(kAll, of_bits(bits));
      void* const out = sum.data() + begin;
      reduce_memory({&out, 1}, {all.data() + begin, other.data() + begin}, kAll - begin, dtype, ReduceOp::sum);
      for (std::size_t i = begin; i < kAll; ++i)
        ASSERT_EQ(sum[i].x, T(static_cast<float>(all[i]) + static_cast<float>(other[i])).x)
            << dtype << ' ' << i << ' ' << bits;
    }
}

TEST(SharedMemory, RoundsHalfPrecisionAsLibTorchDoes) {
  // 1, a little more, the next to nothing, the largest, -infinity, not a number.
  expect_sums_of_all_values<c10::BFloat16>(at::kBFloat16, {0x3f80, 0x3f81, 0x0001, 0x7f7f, 0xff80, 0xffff});
  expect_sums_of_all_values<c10::Half>(at::kHalf, {0x3c00, 0x3c01, 0x0001, 0x7bff, 0xfc00, 0xffff});
}

TEST(SharedMemory, CopiesWhateverTheAlignment) {
  const at::Tensor from = values(1, 5'000, at::kByte);
  for (const auto copy : {copy_past_caches, copy_in_caches, copy_string})
    for (int64_t place : {0, 1, 63, 64, 100})
      for (int64_t size : {0, 1, 127, 128, 129, 1000, 2048, 4096}) {
        at::Tensor to = at::full({5'000}, 77, at::kByte), expected = to.clone();
        expected.narrow(0, place, size).copy_(from.narrow(0, 3, size));
        copy(to.mutable_data_ptr<uint8_t>() + place, from.const_data_ptr<uint8_t>() + 3,
             static_cast<std::size_t>(size));
        ASSERT_EQ(difference_in_bits(to, expected), "") << place << ", " << size;
      }
}

TEST(SharedMemory, GathersBetweenNearAndFarCores) {
  // Ranks that are threads take each other for near and far in turn. The larger sizes do not fit the caches.
  for (int64_t elements : {1'000'000, 3'000'000, 5'000'000})
    run_thread_world(2, {.shared_memory = true}, [&](const Communicator& comm) {
      const at::Tensor whole = shared_zeros(comm, 2 * elements, at::kFloat);
      for (int time = 0; time < 20; ++time) {
        const at::Tensor own = whole.narrow(0, comm.rank() * elements, elements).fill_(2 * time + comm.rank());
        comm.all_gather_into(whole, own);
        ASSERT_EQ(whole.eq(2 * time + at::arange(2).repeat_interleave(elements)).sum().item<int64_t>(), 2 * elements);
      }
    });
}

TEST(SharedMemory, ReducesGradientsBetweenNearAndFarCores) {
  // The larger ones do not fit the caches; each has a part of a block, and an odd count.
  for (int world : {2, 3})
    for (auto dtype : {at::kFloat, at::kBFloat16})
      for (int64_t elements : {700'003, 5'000'003})
        run_thread_world(world, {.shared_memory = true}, [&](const Communicator& comm) {
          const at::Tensor own = values(comm.rank(), elements, dtype);
          at::Tensor expected = values(0, elements, dtype).to(at::kFloat);
          for (int rank = 1; rank < world; ++rank) expected += values(rank, elements, dtype);
          expected = expected.to(dtype);
          const at::Tensor gradient = shared_zeros(comm, elements, dtype, PeerAccess::write);
          for (int time = 0; time < 10; ++time) {
            comm.all_reduce(gradient.copy_(own));
            ASSERT_EQ(difference_in_bits(gradient, expected), "") << world << dtype << elements;
          }
        });
}

TEST(SharedMemory, BlocksOfALargeTensorAreReducedWhoeverIsAhead) {
  for (int world : {2, 3, 4})
    for (uint64_t seed : {0, 1, 2})
      run_thread_world(world, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
        // Several blocks, and a part of one.
        constexpr int64_t kElements = 500'003;
        at::Tensor expected = values(0, kElements, at::kFloat);
        for (int rank = 1; rank < world; ++rank) expected.add_(values(rank, kElements, at::kFloat));
        const at::Tensor living = shared_zeros(comm, kElements, at::kFloat);
        for (int turn = 0; turn < 3; ++turn) {
          living.copy_(values(comm.rank(), kElements, at::kFloat));
          EXPECT_EQ(difference_in_bits(comm.all_gather(living)[world - 1], values(world - 1, kElements, at::kFloat)),
                    "");
          comm.all_reduce(living);
          ASSERT_EQ(difference_in_bits(living, expected), "");
        }
      });
}

using Body = std::function<void(const Communicator&)>;

/// What a rank may call where the others call all_reduce(sum) of float32 [100000].
std::vector<Body> odd_calls() {
  return {[](const Communicator& comm) { comm.all_reduce(at::ones({100'001})); },
          [](const Communicator& comm) { comm.all_reduce(at::ones({3})); },
          [](const Communicator& comm) { comm.all_reduce(at::ones({100'000}, at::kDouble)); },
          [](const Communicator& comm) { comm.all_reduce(at::ones({100'000}), ReduceOp::max); },
          [](const Communicator& comm) { comm.with_label({.text = "odd"}).all_reduce(at::ones({100'000})); },
          [](const Communicator& comm) { comm.reduce(at::ones({100'000})); },
          [](const Communicator& comm) { comm.broadcast(at::ones({100'000})); },
          [](const Communicator& comm) { comm.all_gather(at::ones({100'000})); },
          [](const Communicator& comm) { comm.all_gatherv(at::ones({100'000})); },
          [](const Communicator& comm) { comm.all_gather_bytes("text"); },
          [](const Communicator& comm) {
            comm.subgroup({0, 1});
          },
          [](const Communicator& comm) { comm.barrier(); }};
}

TEST(SharedMemory, MismatchesAreErrorsOnAllRanksHoweverTheyInterleave) {
  const auto odd = odd_calls();
  for (int world : {2, 3, 4, 7})
    for (uint64_t seed = 0; seed < (world > 3 ? odd.size() : 4 * odd.size()); ++seed) {
      std::vector<std::string> messages(world);
      run_thread_world(world, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
        const bool is_odd = comm.rank() == static_cast<int>(seed) % world;
        messages[comm.rank()] = thrown([&] {
          comm.all_reduce(at::ones({70'000}));
          is_odd ? odd[seed % odd.size()](comm) : comm.all_reduce(at::ones({100'000}));
        });
      });
      for (const auto& message : messages) {
        EXPECT_TRUE(message.starts_with("MU050")) << "seed " << seed << ": " << message;
        EXPECT_NE(message.find("all_reduce(sum) of float32 [100000]"), std::string::npos) << message;
      }
    }
}

TEST(SharedMemory, AKilledRankEndsTheOthersAtAnyStep) {
  for (int world : {2, 3, 4, 7})
    for (int64_t step = 1; step < 60; step += world == 3 ? 1 : 7) {
      std::vector<std::string> ids(world);
      run_thread_world(
          world, {.kill_rank = 1, .kill_step = step, .seed = 50 + static_cast<uint64_t>(step), .shared_memory = true},
          [&](const Communicator& comm) {
            ids[comm.rank()] = thrown_id([&] {
              const at::Tensor living = shared_zeros(comm, 5'000, at::kFloat, PeerAccess::write);
              for (int turn = 0; turn < 20; ++turn) {
                comm.all_reduce(living.fill_(1));
                EXPECT_EQ(living[4'999].item<float>(), static_cast<float>(world));
                at::Tensor tensor = at::ones({turn % 2 ? 5 : 100'000});
                comm.all_reduce(tensor);
                EXPECT_EQ(tensor[4].item<float>(), static_cast<float>(world));
                comm.all_gatherv(tensor);
              }
            });
          });
      for (int rank = 0; rank < world; ++rank)
        EXPECT_EQ(ids[rank], rank == 1 ? "MU063" : "MU052") << "rank " << rank << " of " << world << ", step " << step;
    }
}

TEST(SharedMemory, ARankThatDoesNothingIsATimeOutInEveryWait) {
  const std::vector<Body> calls{[](const Communicator& comm) { comm.all_reduce(at::ones({5})); },
                                [](const Communicator& comm) { comm.all_reduce(at::ones({300'000})); },
                                [](const Communicator& comm) { comm.broadcast(at::ones({300'000}), 1); },
                                [](const Communicator& comm) { comm.all_gatherv(at::ones({300'000})); },
                                [](const Communicator& comm) { comm.recv(at::ones({300'000}), 1); },
                                [](const Communicator& comm) { comm.send(at::ones({300'000}), 1); },
                                [](const Communicator& comm) { comm.start_all_reduce(at::ones({300'000})).wait(); }};
  for (int world : {2, 3, 7})
    for (std::size_t call = 0; call < calls.size(); ++call) {
      std::vector<std::string> messages(world);
      Communicator silent;
      run_thread_world(world, {.seed = 1 + call, .shared_memory = true}, [&](const Communicator& comm) {
        comm.all_reduce(at::ones({300'000}));
        if (comm.rank() == 1) silent = comm;  // it does not leave
        else messages[comm.rank()] = thrown([&] { calls[call](comm); });
      });
      for (int rank = 0; rank < world; ++rank) {
        if (rank == 1) continue;
        EXPECT_TRUE(messages[rank].starts_with("MU051")) << call << " on rank " << rank << ": " << messages[rank];
        EXPECT_NE(messages[rank].find("for rank 1 in"), std::string::npos) << messages[rank];
      }
    }
}

TEST(SharedMemory, AbortEndsWaitsOnAllRanksWithTheCause) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    std::vector<std::string> messages(3);
    run_thread_world(3, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 1) comm.abort("the disk is full");
      messages[comm.rank()] = thrown([&] {
        for (int turn = 0; turn < 3; ++turn) comm.all_reduce(at::ones({50'000}));
      });
    });
    for (const auto& message : messages) {
      EXPECT_TRUE(message.starts_with("MU053")) << "seed " << seed << ": " << message;
      EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace muster::comm
