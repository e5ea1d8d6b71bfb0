#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

using Call = std::function<void(const Communicator&)>;

/// What most ranks do, what one of them does instead, and words that the error must carry.
struct Disagreement {
  const char* name;
  Call usual;
  Call odd;
  const char* usual_words;
  const char* odd_words;
};

inline at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) { return at::zeros(shape, dtype); }

inline std::vector<Disagreement> crossed_and_mis_sized() {
  return {
      {"crossed operations",
       [](const Communicator& c) {
         c.all_reduce(zeros({4, 3}));
       },
       [](const Communicator& c) { c.broadcast(zeros({12})); }, "called all_reduce(sum) of float32 [4, 3]",
       "called broadcast(root 0) of float32 [12]"},
      {"crossed, large", [](const Communicator& c) { c.all_reduce(zeros({300'000})); },
       [](const Communicator& c) { c.all_gather(zeros({300'000})); }, "all_reduce(sum) of float32 [300000]",
       "all_gather of float32 [300000]"},
      {"crossed order", [](const Communicator& c) { c.barrier(), c.all_reduce(zeros({1})); },
       [](const Communicator& c) { c.all_reduce(zeros({1})), c.barrier(); }, "called barrier", "called all_reduce"},
      {"crossed started operations",
       [](const Communicator& c) {
         auto w = c.start_all_reduce(zeros({8}));
         c.barrier();
         w.wait();
       },
       [](const Communicator& c) { c.barrier(), c.all_reduce(zeros({8})); }, "called all_reduce", "called barrier"},
      {"mis-sized", [](const Communicator& c) { c.all_reduce(zeros({4})); },
       [](const Communicator& c) { c.all_reduce(zeros({8})); }, "float32 [4]", "float32 [8]"},
      {"mis-sized, large", [](const Communicator& c) { c.all_reduce(zeros({100'000})); },
       [](const Communicator& c) { c.all_reduce(zeros({200'000})); }, "[100000]", "[200000]"},
      {"mis-sized, small and large", [](const Communicator& c) { c.broadcast(zeros({3})); },
       [](const Communicator& c) { c.broadcast(zeros({200'000})); }, "[3]", "[200000]"},
      {"mis-sized broadcast, large", [](const Communicator& c) { c.broadcast(zeros({100'000})); },
       [](const Communicator& c) { c.broadcast(zeros({200'000})); }, "[100000]", "[200000]"},
      {"mis-sized reduce, large", [](const Communicator& c) { c.reduce(zeros({100'000}), 1); },
       [](const Communicator& c) { c.reduce(zeros({200'000}), 1); }, "[100000]", "[200000]"},
      {"mis-sized reduce, small and large", [](const Communicator& c) { c.reduce(zeros({3})); },
       [](const Communicator& c) { c.reduce(zeros({100'000})); }, "[3]", "[100000]"},
  };
}

inline std::vector<Disagreement> of_other_kinds() {
  return {
      {"mis-shaped",
       [](const Communicator& c) {
         c.all_reduce(zeros({2, 6}));
       },
       [](const Communicator& c) {
         c.all_reduce(zeros({6, 2}));
       },
       "[2, 6]", "[6, 2]"},
      {"empty and not", [](const Communicator& c) { c.all_gather(zeros({0})); },
       [](const Communicator& c) { c.all_gather(zeros({1})); }, "[0]", "[1]"},
      {"mis-typed", [](const Communicator& c) { c.all_reduce(zeros({4}, at::kFloat)); },
       [](const Communicator& c) { c.all_reduce(zeros({2}, at::kDouble)); }, "float32 [4]", "float64 [2]"},
      {"mis-typed, same bytes", [](const Communicator& c) { c.all_reduce(zeros({4}, at::kFloat)); },
       [](const Communicator& c) { c.all_reduce(zeros({4}, at::kInt)); }, "float32 [4]", "int32 [4]"},
      {"mis-typed gather", [](const Communicator& c) { c.all_gatherv(zeros({4}, at::kHalf)); },
       [](const Communicator& c) { c.all_gatherv(zeros({5}, at::kBFloat16)); }, "float16", "bfloat16"},
      {"other root", [](const Communicator& c) { c.broadcast(zeros({4}), 0); },
       [](const Communicator& c) { c.broadcast(zeros({4}), 1); }, "broadcast(root 0)", "broadcast(root 1)"},
      {"other reduction", [](const Communicator& c) { c.all_reduce(zeros({4})); },
       [](const Communicator& c) { c.all_reduce(zeros({4}), ReduceOp::max); }, "all_reduce(sum)", "all_reduce(max)"},
      {"other source", [](const Communicator& c) { c.internal("joining").all_gather(zeros({2})); },
       [](const Communicator& c) { c.all_gather(zeros({2})); }, "the library's all_gather of float32 [2] for joining",
       "called all_gather of float32 [2]"},
      {"other purpose", [](const Communicator& c) { c.internal("joining").barrier(); },
       [](const Communicator& c) { c.internal("saving").barrier(); }, "barrier for joining", "barrier for saving"},
      {"other tensor", [](const Communicator& c) { c.with_label({.tensor_count = 2}).all_gather(zeros({2})); },
       [](const Communicator& c) { c.with_label({.tensor_index = 1, .tensor_count = 2}).all_gather(zeros({2})); },
       "tensor 1 of 2", "tensor 2 of 2"},
      {"other step", [](const Communicator& c) { c.internal("gradients", 4).start_all_reduce(zeros({30'000})).wait(); },
       [](const Communicator& c) { c.internal("gradients", 5).start_all_reduce(zeros({30'000})).wait(); },
       "in gradient step 4", "in gradient step 5"},
      {"other sub-group", [](const Communicator& c) { c.subgroup({0}); },
       [](const Communicator& c) { c.subgroup({1}); }, "subgroup of ranks [0]", "subgroup of ranks [1]"},
  };
}

inline const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all = [] {
    auto both = crossed_and_mis_sized();
    std::ranges::move(of_other_kinds(), std::back_inserter(both));
    return both;
  }();
  return all;
}

/// What the call threw: the message of an MU050, or what it was instead.
inline std::string mismatch_seen(const Call& call, const Communicator& comm) {
  try {
    call(comm);
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

inline void expect_both_sides(const Disagreement& one, const std::string& message, const std::string& where) {
  EXPECT_TRUE(message.starts_with("MU050")) << one.name << ", " << where << ": " << message;
  EXPECT_NE(message.find(one.usual_words), std::string::npos) << one.name << ", " << where << ": " << message;
  EXPECT_NE(message.find(one.odd_words), std::string::npos) << one.name << ", " << where << ": " << message;
  EXPECT_NE(message.find("operation 0 of group"), std::string::npos) << one.name << ", " << where << ": " << message;
}

}  // namespace muster::comm
