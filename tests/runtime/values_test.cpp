#include "muster/runtime/detail/values.h"

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/runtime/detail/process_control.h"
#include "muster/runtime/metrics.h"
#include "muster/runtime/padding.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::runtime {
namespace {

torch::Tensor filled(std::vector<int64_t> shape, double value) { return torch::full(shape, value, torch::kDouble); }

TEST(Values, GatherJoinsAlongTheFirstDimension) {
  for (int world : {1, 2, 3}) {
    testing::run_threads(world, 0, [world](comm::Communicator group) {
      auto [rows, scalar] = gather(group, filled({2, 3}, group.rank()), torch::tensor(group.rank()));
      EXPECT_EQ(rows.sizes(), (std::vector<int64_t>{2 * world, 3}));
      EXPECT_EQ(scalar.sizes(), (std::vector<int64_t>{world}));  // one rank included: the same shape rule everywhere
      for (int r = 0; r < world; ++r) EXPECT_EQ(rows[2 * r][0].item<double>(), r);
    });
  }
}

TEST(Values, ADisagreementNamesTheDtypeThatWasGiven) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto said = testing::thrown([&] { reduce(group, torch::ones({2 + group.rank()}, torch::kInt), "sum"); });
    EXPECT_EQ(said.rfind("MU050", 0), 0u) << said;
    EXPECT_NE(said.find("a tensor of int32"), std::string::npos) << said;
  });
  testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto said = testing::thrown([&] { reduce(group, torch::ones({2 + group.rank()}), "sum"); });
    EXPECT_EQ(said.find("This rank gave"), std::string::npos) << said;
  });
}

TEST(Values, NestedValuesKeepTheirStructure) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    std::map<std::string, std::tuple<torch::Tensor, int>> value{{"a", {filled({1}, group.rank() + 1), 7}}};
    const auto sum = reduce(group, value, "sum");
    EXPECT_EQ(std::get<0>(sum.at("a")).item<double>(), 3);
    EXPECT_EQ(std::get<1>(sum.at("a")), 7);
    EXPECT_EQ(std::get<0>(value.at("a")).item<double>(), group.rank() + 1);  // the argument is not touched
  });
}

TEST(Values, ReducesByName) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    EXPECT_EQ(reduce(group, filled({}, group.rank()), "mean").item<double>(), 0.5);
    EXPECT_EQ(reduce(group, torch::tensor(group.rank()), "max").item<int64_t>(), 1);
    EXPECT_THROW(reduce(group, torch::tensor(group.rank()), "mean"), ConfigError);
    EXPECT_THROW(reduce(group, torch::tensor(group.rank()), "none"), ConfigError);
  });
}

TEST(Values, SumsAndProductsOfWholeNumbersAreInt64AsThoseOfOneTensor) {
  for (const int world : {1, 2, 3})
    testing::run_threads(world, 0, [world](comm::Communicator group) {
      for (const auto dtype : {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong}) {
        const auto mine = torch::tensor({1, 0, 1, 100}).to(dtype);
        const auto all = torch::stack(std::vector<torch::Tensor>(static_cast<size_t>(world), mine));
        for (const bool sums : {true, false}) {
          const auto expected = sums ? all.sum(0) : all.prod(0), got = reduce(group, mine, sums ? "sum" : "product");
          EXPECT_EQ(got.scalar_type(), expected.scalar_type()) << dtype;
          EXPECT_TRUE(torch::equal(got, expected)) << dtype << ": " << got << " for " << expected;
        }
        for (const char* op : {"min", "max"}) EXPECT_EQ(reduce(group, mine, op).scalar_type(), dtype) << op;
      }
      EXPECT_EQ(reduce(group, filled({1}, 1), "sum").scalar_type(), torch::kDouble);
    });
}

TEST(Values, NumbersAreReducedToo) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    EXPECT_EQ(reduce(group, 1.5 + group.rank(), "mean"), 2.0);
    EXPECT_EQ(reduce(group, int64_t{1} << (40 + group.rank()), "sum"), int64_t{3} << 40);
    EXPECT_EQ(reduce(group, group.rank() == 1, "max"), true);
    EXPECT_THROW(reduce(group, group.rank(), "mean"), ConfigError);
  });
}

TEST(Values, BroadcastBringsShapeAndDtypeAlong) {
  testing::run_threads(3, 0, [](comm::Communicator group) {
    const auto mine = group.rank() == 1 ? torch::arange(6).view({2, 3}) : torch::Tensor();
    EXPECT_TRUE(torch::equal(broadcast(group, mine, 1), torch::arange(6).view({2, 3})));
    EXPECT_EQ(broadcast(group, std::string(group.rank() == 0 ? "text" : ""), 0), "text");
    EXPECT_EQ(broadcast(group, group.rank() * 2.5, 2), 5.0);
  });
}

TEST(Values, BroadcastOfNothingIsRefused) {
  try {
    broadcast(comm::Communicator(), torch::Tensor(), 0);
    FAIL() << "an undefined tensor was sent";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU177");
  }
}

/// The id and the text of what `f` throws.
template <class F>
std::pair<std::string, std::string> thrown_by(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return {error.id(), error.what()};
  } catch (const std::exception& error) {
    return {"", error.what()};
  }
  return {"", "nothing was thrown"};
}

TEST(Values, ListsOfUnequalLengthAreAnErrorEverywhereAndTheNextGatherIsRight) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    const std::vector<torch::Tensor> list(static_cast<size_t>(group.rank() + 1), filled({1}, 2));
    const auto [id, text] = thrown_by([&] { gather(group, list); });
    EXPECT_EQ(id, "MU065") << text;
    EXPECT_NE(text.find("rank 0 has 1 tensor ([0]) and rank 1 has 2 tensors ([0], [1])"), std::string::npos) << text;
    EXPECT_EQ(gather(group, filled({1}, 100)).sum().item<double>(), 200);
    EXPECT_EQ(thrown_by([&] { reduce(group, list, "sum"); }).first, "MU065");
    EXPECT_EQ(thrown_by([&] { broadcast(group, list, 0); }).first, "MU065");
    EXPECT_EQ(thrown_by([&] { all_gather(group, list); }).first, "MU065");
    EXPECT_EQ(thrown_by([&] { pad_across_processes(group, list, {}); }).first, "MU065");
    EXPECT_EQ(gather(group, filled({1}, 100)).sum().item<double>(), 200);
  });
}

TEST(Values, AnOptionalThatOneRankHasIsAnErrorEverywhere) {
  testing::run_threads(3, 0, [](comm::Communicator group) {
    struct Output {
      torch::Tensor loss;
      std::optional<torch::Tensor> hidden;
    };
    const Output mine{filled({1}, 2), group.rank() == 1 ? std::optional(filled({1}, 3)) : std::nullopt};
    const auto [id, text] = thrown_by([&] { gather(group, mine); });
    EXPECT_EQ(id, "MU065") << text;
    EXPECT_EQ(gather(group, filled({1}, 100)).sum().item<double>(), 300);
    const auto [loss, hidden] = gather(group, Output{filled({1}, 2), filled({1}, 3)});
    EXPECT_EQ(loss.sum().item<double>(), 6);
    EXPECT_EQ(hidden->sum().item<double>(), 9);
  });
}

TEST(Values, MapsOfOtherKeysAreAnErrorEverywhere) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    const std::map<std::string, torch::Tensor> mine{{group.rank() == 0 ? "loss" : "norm", filled({1}, 2)}};
    const auto [id, text] = thrown_by([&] { reduce(group, mine, "sum"); });
    EXPECT_EQ(id, "MU065") << text;
    EXPECT_NE(text.find("[\"loss\"]"), std::string::npos) << text;
    EXPECT_NE(text.find("[\"norm\"]"), std::string::npos) << text;
  });
}

TEST(Values, AnUndefinedTensorIsRefusedByEveryFunction) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    const std::tuple<torch::Tensor, torch::Tensor> mine{filled({1}, 1), torch::Tensor()};
    const auto refused = [](const auto& f) {
      const auto [id, text] = thrown_by(f);
      EXPECT_EQ(id, "MU177") << text;
      EXPECT_NE(text.find("(1)"), std::string::npos) << text;
    };
    refused([&] { gather(group, mine); });
    refused([&] { all_gather(group, mine); });
    refused([&] { reduce(group, mine, "sum"); });
    refused([&] { pad_across_processes(group, mine, {}); });
    refused([&] { gather_for_metrics(group, std::nullopt, mine); });
    EXPECT_EQ(gather(group, filled({1}, 100)).sum().item<double>(), 200);
    std::vector<torch::Tensor> list{group.rank() == 0 ? torch::Tensor()
                                                      : filled({1}, 1)};  // all ranks are told of a list's
    EXPECT_EQ(thrown_by([&] { gather(group, list); }).first, "MU065");
    list[0] = torch::Tensor();
    EXPECT_EQ(thrown_by([&] { gather(group, list); }).first, "MU177");
  });
}

/// Of a type that has the same tensors everywhere, so that nothing compares them first.
TEST(Values, AnUndefinedTensorOfOneRankIsAnErrorOfAllWithinTheCall) {
  const std::vector<std::function<void(const comm::Communicator&, const torch::Tensor&)>> functions{
      [](const auto& group, const auto& tensor) { gather(group, tensor); },
      [](const auto& group, const auto& tensor) { all_gather(group, tensor); },
      [](const auto& group, const auto& tensor) { reduce(group, tensor, "sum"); },
      [](const auto& group, const auto& tensor) { pad_across_processes(group, tensor, {}); },
      [](const auto& group, const auto& tensor) { gather_for_metrics(group, std::nullopt, tensor); },
      [](const auto& group, const auto& tensor) { broadcast(group, tensor, 1); }};
  for (const int64_t elements : {3, 300'000})
    for (size_t i = 0; i < functions.size(); ++i)
      testing::run_threads(3, 0, [&](comm::Communicator group) {
        const auto [id, text] =
            thrown_by([&] { functions[i](group, group.rank() == 1 ? torch::Tensor() : filled({elements}, 1)); });
        EXPECT_EQ(id, group.rank() == 1 ? "MU177" : "MU050") << i << ": " << text;
        EXPECT_NE(text.find("undefined tensor"), std::string::npos) << text;
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      });
}

TEST(Values, PaddingAlongADimensionThatIsNotThereIsRefused) {
  testing::run_threads(2, 0, [](comm::Communicator group) {
    for (int64_t dim : {2, -3}) {
      const auto [id, text] = thrown_by([&] { pad_across_processes(group, filled({3, 4}, 1), {.dim = dim}); });
      EXPECT_EQ(id, "MU060") << text;
      EXPECT_NE(text.find("[3, 4]"), std::string::npos) << text;
    }
    EXPECT_EQ(thrown_by([&] { pad_across_processes(group, filled({}, 1), {.dim = 1}); }).first, "MU060");
    EXPECT_EQ(pad_across_processes(group, filled({3, 4}, 1), {.dim = -1}).size(1), 4);
  });
}

TEST(Values, PaddingReachesTheLongest) {
  testing::run_threads(3, 0, [](comm::Communicator group) {
    const auto mine = filled({group.rank() + 1, 2}, 1);
    const auto behind = pad_across_processes(group, mine, {.value = -1});
    EXPECT_EQ(behind.sizes(), (std::vector<int64_t>{3, 2}));
    EXPECT_EQ((behind == -1).sum().item<int64_t>(), 2 * (2 - group.rank()));
    EXPECT_EQ(behind[0][0].item<double>(), 1);
    const auto front = pad_across_processes(group, mine, {.pad_first = true});
    EXPECT_EQ(front[2][0].item<double>(), 1);
    EXPECT_TRUE(torch::equal(pad_across_processes(group, filled({}, 3), {}), filled({}, 3)));
  });
}

TEST(FirstHere, TheMainRankComesFirst) {
  testing::run_threads(3, 0, [](comm::Communicator group) {
    static std::atomic<int> turns{0};
    if (group.rank() == 0) turns = 0;
    group.barrier();
    const int turn = first_here(group, group.rank() == 0, [] { return turns++; });
    if (group.rank() == 0) EXPECT_EQ(turn, 0);
    else EXPECT_GT(turn, 0);
  });
}

TEST(FirstHere, AnExceptionOfTheMainRankReachesAll) {
  testing::run_threads(3, 0, [](comm::Communicator group) {
    auto body = [] { throw std::runtime_error("the disk is full"); };
    if (group.rank() == 0) {
      EXPECT_THROW(first_here(group, true, body), std::runtime_error);
      return;
    }
    try {
      first_here(group, false, body);
      FAIL() << "the other ranks were not told";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.id(), "MU176");
      EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace muster::runtime
