#include "muster/comm/communicator.h"

#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/samples.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

using testing::difference;
using testing::difference_in_bits;
using testing::run_threads;
using testing::thrown_id;

class Product : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t elements() const { return std::get<1>(GetParam()); }
  /// The body for every dtype, under a seed that differs from case to case; the large case runs freely.
  void for_each_dtype(const std::function<void(const Communicator&, at::ScalarType)>& body) const {
    uint64_t seed = elements() > 1000 ? 0 : 1 + world() * 10 + elements();
    run_threads(world(), seed, [&](const Communicator& comm) {
      for (auto dtype : kAllDtypes) {
        SCOPED_TRACE(std::string("rank ") + std::to_string(comm.rank()) + " " + c10::toString(dtype));
        body(comm, dtype);
      }
    });
  }
};

TEST_P(Product, AllReduce) {
  for_each_dtype([&](const Communicator& comm, at::ScalarType dtype) {
    for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
      int64_t values = op == ReduceOp::product ? 2 : 5;
      at::Tensor tensor = sample(comm.rank(), elements(), dtype, values);
      comm.all_reduce(tensor, op);
      at::Tensor expected = reduced(world(), elements(), dtype, op, values);
      EXPECT_EQ(op == ReduceOp::mean ? difference(tensor, expected, 1e-2, 0) : difference_in_bits(tensor, expected),
                "");
      at::Tensor started = sample(comm.rank(), elements(), dtype, values);
      comm.start_all_reduce(started, op).wait();
      EXPECT_EQ(difference_in_bits(started, tensor), "");
    }
  });
}

TEST_P(Product, ReduceScatterAndReduce) {
  for_each_dtype([&](const Communicator& comm, at::ScalarType dtype) {
    int64_t all = elements() * world();
    at::Tensor in = sample(comm.rank(), all, dtype);
    at::Tensor untouched = in.clone();
    at::Tensor out = at::empty({elements()}, dtype);
    at::Tensor expected = reduced(world(), all, dtype, ReduceOp::sum).narrow(0, comm.rank() * elements(), elements());
    comm.reduce_scatter(out, in);
    EXPECT_EQ(difference_in_bits(out, expected), "");
    out.zero_();
    comm.start_reduce_scatter(out, in).wait();
    EXPECT_EQ(difference_in_bits(out, expected), "");
    EXPECT_EQ(difference_in_bits(in, untouched), "");
    int root = world() - 1;
    comm.reduce(in, root, ReduceOp::max);
    at::Tensor largest = reduced(world(), all, dtype, ReduceOp::max);
    EXPECT_EQ(difference_in_bits(in, comm.rank() == root ? largest : untouched), "");
  });
}

TEST_P(Product, GatherScatterBroadcast) {
  for_each_dtype([&](const Communicator& comm, at::ScalarType dtype) {
    at::Tensor own = sample(comm.rank(), elements(), dtype);
    at::Tensor all = comm.all_gather(own);
    ASSERT_EQ(all.size(0), world());
    at::Tensor into = at::empty({elements() * world()}, dtype);
    comm.start_all_gather_into(into, own).wait();
    for (int rank = 0; rank < world(); ++rank)
      EXPECT_EQ(difference_in_bits(all[rank], sample(rank, elements(), dtype)), "");
    EXPECT_EQ(difference_in_bits(into, all.view(-1)), "");
    int root = world() / 2;
    auto gathered = comm.gather(own, root);
    ASSERT_EQ(gathered.size(), comm.rank() == root ? static_cast<std::size_t>(world()) : 0u);
    for (std::size_t rank = 0; rank < gathered.size(); ++rank)
      EXPECT_EQ(difference_in_bits(gathered[rank], all[rank]), "");
    EXPECT_EQ(difference_in_bits(comm.scatter(gathered, root), own), "");
    comm.broadcast(own, root);
    EXPECT_EQ(difference_in_bits(own, all[root]), "");
    own.zero_();
    if (comm.rank() == 0) own.copy_(all[0]);
    comm.start_broadcast(own).wait();
    EXPECT_EQ(difference_in_bits(own, all[0]), "");
  });
}

TEST_P(Product, UnevenShapes) {
  for_each_dtype([&](const Communicator& comm, at::ScalarType dtype) {
    // Rank r's tensor has r + 1 rows, and one dimension more than its neighbour's.
    auto uneven = [&](int rank) {
      at::Tensor tensor = sample(rank, (rank + 1) * elements(), dtype).view({rank + 1, elements()});
      return rank % 2 ? tensor.unsqueeze(1) : tensor;
    };
    auto gathered = comm.all_gatherv(uneven(comm.rank()));
    ASSERT_EQ(gathered.size(), static_cast<std::size_t>(world()));
    for (int rank = 0; rank < world(); ++rank) EXPECT_EQ(difference_in_bits(gathered[rank], uneven(rank)), "");
    std::vector<at::Tensor> parts;
    for (int to = 0; to < world(); ++to) parts.push_back(uneven(to) + (dtype == at::kBool ? 0 : comm.rank()));
    auto received = comm.all_to_all(parts);
    for (int from = 0; from < world(); ++from) {
      at::Tensor expected = uneven(comm.rank()) + (dtype == at::kBool ? 0 : from);
      EXPECT_EQ(difference_in_bits(received[from], expected), "");
    }
  });
}

TEST_P(Product, SendAndReceive) {
  for_each_dtype([&](const Communicator& comm, at::ScalarType dtype) {
    // Down the line and back.
    at::Tensor tensor = at::zeros({elements()}, dtype);
    if (comm.rank() == 0) tensor = sample(99, elements(), dtype);
    if (comm.rank() > 0) comm.recv(tensor, comm.rank() - 1);
    if (comm.rank() + 1 < world()) comm.send(tensor, comm.rank() + 1);
    EXPECT_EQ(difference_in_bits(tensor, sample(99, elements(), dtype)), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Product,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 7),
                                            ::testing::Values<int64_t>(0, 1, 13, 70001)));

TEST(Communicator, NonContiguousTensors) {
  run_threads(3, 5, [](const Communicator& comm) {
    at::Tensor base = sample(comm.rank(), 24, at::kFloat).view({4, 6});
    at::Tensor columns = base.t();
    ASSERT_FALSE(columns.is_contiguous());
    comm.all_reduce(columns);
    EXPECT_EQ(difference_in_bits(base, reduced(3, 24, at::kFloat, ReduceOp::sum).view({4, 6})), "");
    at::Tensor gathered = comm.all_gather(columns);
    EXPECT_EQ(difference_in_bits(gathered[1], columns.contiguous()), "");
    at::Tensor into = at::zeros({6, 12}).t();
    comm.all_gather_into(into, columns);
    EXPECT_EQ(difference_in_bits(into.contiguous().view({3, 24}), gathered.view({3, 24})), "");
    at::Tensor out = at::zeros({4, 3}).t(), in = at::ones({12, 3}).t();
    comm.reduce_scatter(out, in);
    EXPECT_EQ(difference_in_bits(out.contiguous(), at::full({3, 4}, 3.f)), "");
    at::Tensor every_other = at::zeros({20}).slice(0, 0, 20, 2);
    if (comm.rank() == 1) every_other.fill_(8);
    comm.broadcast(every_other, 1);
    EXPECT_EQ(every_other.sum().item<float>(), 80.f);
  });
}

TEST(Communicator, TensorsThatLibTorchNegatesAsItReads) {
  run_threads(2, 9, [](const Communicator& comm) {
    // -1, negated as it is read, on rank 0; -2 as it stands in memory on rank 1.
    const auto own = [&] {
      const at::Tensor plain = at::full({3}, -1.F - static_cast<float>(comm.rank()));
      return comm.rank() == 0 ? at::_neg_view(-plain) : plain;
    };
    const at::Tensor both = at::arange(-1, -3, -1, at::kFloat).view({2, 1}).expand({2, 3});
    EXPECT_EQ(difference_in_bits(comm.all_gather(own()), both), "");
    EXPECT_EQ(difference_in_bits(comm.all_gatherv(own())[0], both[0]), "");
    for (const auto& [op, result] : {std::pair{ReduceOp::sum, -3.F}, {ReduceOp::max, -1.F}, {ReduceOp::product, 2.F}}) {
      const at::Tensor tensor = own();
      comm.all_reduce(tensor, op);
      EXPECT_EQ(difference_in_bits(tensor.resolve_neg(), at::full({3}, result)), "");
    }
    const at::Tensor sent = own();
    comm.broadcast(sent, 0);
    EXPECT_EQ(difference_in_bits(sent.resolve_neg(), both[0]), "");
    const at::Tensor whole = at::_neg_view(at::zeros({2, 3}));
    comm.all_gather_into(whole, own());
    EXPECT_EQ(difference_in_bits(whole.resolve_neg(), both), "");
    const at::Tensor part = at::_neg_view(at::zeros({3}));
    comm.reduce_scatter(part, whole);
    EXPECT_EQ(difference_in_bits(part.resolve_neg(), 2 * both[comm.rank()]), "");
    EXPECT_EQ(thrown_id([&] { comm.start_all_reduce(whole).wait(); }), "MU060");
  });
}

TEST(Communicator, APieceElsewhereInTheWholeIsRefused) {
  run_threads(2, 4, [](const Communicator& comm) {
    const at::Tensor whole = at::arange(8, at::kFloat);
    for (int64_t place : {0, 1, 3, 4}) {
      const at::Tensor piece = whole.narrow(0, place, 4);
      if (place == 4 * comm.rank()) continue;
      EXPECT_EQ(thrown_id([&] { comm.all_gather_into(whole, piece); }), "MU060");
      EXPECT_EQ(thrown_id([&] { comm.start_all_gather_into(whole, piece).wait(); }), "MU060");
      EXPECT_EQ(thrown_id([&] { comm.reduce_scatter(piece, whole); }), "MU060");
      EXPECT_EQ(thrown_id([&] { comm.start_reduce_scatter(piece, whole).wait(); }), "MU060");
    }
    // Neighbours in one storage, and a rank's own piece.
    const at::Tensor storage = at::arange(12, at::kFloat);
    comm.all_gather_into(storage.narrow(0, 4, 8), storage.narrow(0, 0, 4));
    EXPECT_EQ(difference_in_bits(storage.narrow(0, 8, 4), at::arange(4, at::kFloat)), "");
    comm.all_gather_into(whole, whole.narrow(0, 4 * comm.rank(), 4));
    EXPECT_EQ(difference_in_bits(whole, at::arange(8, at::kFloat)), "");
  });
}

TEST(Communicator, SumsAreInRankOrderAndTheSameBitsEverywhere) {
  for (int64_t elements : {50, 30'000, 1'000'003}) {
    run_threads(3, 0, [&](const Communicator& comm) {
      auto value = [&](int rank) {
        return (at::arange(elements, at::kFloat) * (1.37f + static_cast<float>(rank))).sin() *
               std::pow(10.f, static_cast<float>(rank));
      };
      at::Tensor expected = (value(0) + value(1)) + value(2);
      for (int run = 0; run < 3; ++run) {
        at::Tensor sum = value(comm.rank());
        comm.all_reduce(sum);
        EXPECT_EQ(difference_in_bits(sum, expected), "");
      }
      at::Tensor half = value(comm.rank()).to(at::kBFloat16);
      at::Tensor wide = (value(0).to(at::kBFloat16).to(at::kFloat) + value(1).to(at::kBFloat16).to(at::kFloat)) +
                        value(2).to(at::kBFloat16).to(at::kFloat);
      comm.all_reduce(half);
      EXPECT_EQ(difference_in_bits(half, wide.to(at::kBFloat16)), "") << "summed in float32 and rounded once";
    });
  }
}

TEST(Communicator, ManyChunksInFlight) {
  run_threads(2, 0, [](const Communicator& comm) {
    at::Tensor tensor = sample(comm.rank(), 5'000'001, at::kFloat);
    comm.all_reduce(tensor, ReduceOp::mean);
    EXPECT_EQ(difference_in_bits(tensor, reduced(2, 5'000'001, at::kFloat, ReduceOp::mean)), "");
  });
}

TEST(Communicator, Bytes) {
  for (int world : {1, 2, 3, 7}) {
    run_threads(world, 11, [&](const Communicator& comm) {
      auto text = [](int rank) {
        return std::string(static_cast<std::size_t>(rank) * 3000, static_cast<char>('a' + rank));
      };
      auto all = comm.all_gather_bytes(text(comm.rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(world));
      for (int rank = 0; rank < world; ++rank) EXPECT_EQ(all[rank], text(rank));
      EXPECT_EQ(comm.broadcast_bytes(text(comm.rank()), world - 1), text(world - 1));
      auto gathered = comm.gather_bytes(text(comm.rank()), 0);
      EXPECT_EQ(gathered.size(), comm.rank() == 0 ? static_cast<std::size_t>(world) : 0u);
    });
  }
}

TEST(Communicator, TensorsThatRequireGradAndAreWorkedOnByTheGroupsThread) {
  run_threads(2, 3, [](const Communicator& comm) {
    at::Tensor weight = at::ones({3, 5}).set_requires_grad(true);
    comm.all_reduce(weight);
    comm.start_all_reduce(weight).wait();
    EXPECT_EQ(weight.sum().item<float>(), 60.f);
    EXPECT_TRUE(weight.is_leaf());
    EXPECT_FALSE(comm.all_gather(weight).requires_grad());
  });
}

TEST(Communicator, ArgumentsThatCannotBeRight) {
  Communicator comm;
  at::Tensor whole = at::ones({4}, at::kLong);
  EXPECT_EQ(thrown_id([&] { comm.all_reduce(whole, ReduceOp::mean); }), "MU054");
  EXPECT_EQ(thrown_id([&] { parse_reduce_op("avarage"); }), "MU055");
  EXPECT_EQ(thrown_id([&] { comm.all_reduce(at::ones({2}, at::TensorOptions().device(at::kMeta))); }), "MU056");
  EXPECT_EQ(thrown_id([&] { comm.all_reduce(at::ones({2}, at::kComplexFloat)); }), "MU056");
  EXPECT_EQ(thrown_id([&] { comm.broadcast(whole, 1); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.all_reduce(at::Tensor()); }), "MU060");
  EXPECT_EQ(thrown_id([&] { (void)comm.start_all_reduce(at::ones({4, 4}).t()); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.reduce_scatter(at::ones({2}), at::ones({3})); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.all_to_all({whole, whole}); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.scatter({}, 0); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.subgroup({0, 0}); }), "MU060");
  EXPECT_EQ(thrown_id([&] { comm.send(whole, 0); }), "MU060");
  EXPECT_EQ(parse_reduce_op("avg"), ReduceOp::mean);
  EXPECT_EQ(parse_reduce_op("prod"), ReduceOp::product);
}

/// What the header calls collective, and one call of each.
std::vector<std::pair<std::string, std::function<void(const Communicator&)>>> collective_calls() {
  static const at::Tensor four = at::ones({4}), two = at::ones({2});
  return {{"all_reduce", [](const Communicator& c) { c.all_reduce(four.clone()); }},
          {"all_gather", [](const Communicator& c) { c.all_gather(four); }},
          {"all_gather_into", [](const Communicator& c) { c.all_gather_into(at::empty({4 * c.size()}), four); }},
          {"all_gatherv", [](const Communicator& c) { c.all_gatherv(four); }},
          {"reduce_scatter", [](const Communicator& c) { c.reduce_scatter(two.clone(), four); }},
          {"broadcast", [](const Communicator& c) { c.broadcast(four.clone()); }},
          {"reduce", [](const Communicator& c) { c.reduce(four.clone()); }},
          {"gather", [](const Communicator& c) { c.gather(four); }},
          {"scatter",
           [](const Communicator& c) {
             c.scatter({two, two});
           }},
          {"all_to_all",
           [](const Communicator& c) {
             c.all_to_all({two, two});
           }},
          {"barrier", [](const Communicator& c) { c.barrier(); }},
          {"broadcast_bytes", [](const Communicator& c) { c.broadcast_bytes("x"); }},
          {"all_gather_bytes", [](const Communicator& c) { c.all_gather_bytes("x"); }},
          {"gather_bytes", [](const Communicator& c) { c.gather_bytes("x"); }},
          {"subgroup", [](const Communicator& c) {
             c.subgroup({0, 1});
           }}};
}

TEST(Communicator, CollectiveCallsNeedEveryRankAndOthersNone) {
  for (const auto& [name, call] : collective_calls()) {
    for (int caller : {0, 1}) {
      std::string seen;
      run_threads(2, 7, [&](const Communicator& comm) {
        if (comm.rank() != caller) return;
        (void)comm.size(), (void)comm.name(), (void)comm.timeout(), comm.observe([](const OperationEvent&) {});
        seen = thrown_id([&] { call(comm); });
      });
      EXPECT_EQ(seen, "MU052") << name << " called by rank " << caller << " alone";
    }
  }
}

}  // namespace
}  // namespace muster::comm
