#include "muster/tree/detail/collate.h"

#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include "muster/base/error.h"

namespace muster::tree {
namespace {

using at::Tensor;
using torch::data::Example;

static_assert(std::same_as<collated_t<Example<Tensor, int64_t>>, Example<>>);
static_assert(std::same_as<collated_t<std::tuple<float, std::string, Tensor>>,
                           std::tuple<Tensor, std::vector<std::string>, Tensor>>);
static_assert(std::same_as<collated_t<std::map<std::string, int>>, std::map<std::string, Tensor>>);

Tensor value(double x, at::IntArrayRef sizes = {2, 3}) { return torch::full(sizes, x); }

TEST(Collate, StacksTensors) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    const std::vector<Tensor> samples{value(0).to(dtype), value(1).to(dtype), value(1).to(dtype)};
    EXPECT_TRUE(collate(samples).equal(torch::stack(samples))) << dtype;
  }
  const std::vector<Tensor> scalars{torch::tensor(1.0), torch::tensor(2.0)};
  EXPECT_TRUE(collate(scalars).equal(torch::stack(scalars)));
  const std::vector<Tensor> empty{torch::empty({0, 2}), torch::empty({0, 2})};
  EXPECT_EQ(collate(empty).sizes().vec(), (std::vector<int64_t>{2, 0, 2}));
}

TEST(Collate, StacksViewsThatAreNotContiguous) {
  const auto base = torch::arange(24.0).view({2, 3, 4});
  const std::vector<Tensor> samples{base[0].t(), base[1].t()};
  EXPECT_TRUE(collate(samples).equal(torch::stack(samples)));
  const auto complex = torch::complex(value(1), value(2));
  const std::vector<Tensor> conjugates{complex.conj(), complex.conj()};
  EXPECT_TRUE(collate(conjugates).equal(torch::stack(conjugates)));
}

TEST(Collate, StopsGradients) {
  const auto leaf = value(1).requires_grad_();
  EXPECT_FALSE(collate(std::vector{leaf, leaf * 2}).requires_grad());
  EXPECT_FALSE(collate(std::vector{leaf.t(), leaf.t()}).requires_grad());
}

TEST(Collate, NumbersBecomeTensorsAsTorchMakesThem) {
  EXPECT_TRUE(collate(std::vector<int64_t>{1, 2}).equal(torch::tensor({1, 2})));
  EXPECT_TRUE(collate(std::vector<int>{1, 2}).equal(torch::tensor({1, 2})));
  EXPECT_EQ(collate(std::vector<double>{1, 2}).scalar_type(), torch::tensor({1.0, 2.0}).scalar_type());
  EXPECT_TRUE(collate(std::vector<float>{1.5f, 2}).equal(torch::tensor({1.5f, 2.0f})));
  const auto flags = collate(std::vector<std::tuple<bool>>{{true}, {false}});
  EXPECT_TRUE(std::get<0>(flags).equal(torch::tensor({true, false})));
}

struct Named {
  Tensor image;
  std::vector<Tensor> boxes;
  std::optional<Tensor> weight;
};
class Odd {
 public:
  explicit Odd(Tensor t) : t(std::move(t)) {}
  friend auto tensors_of(Odd& o) { return std::tie(o.t); }
  Tensor t;
};

TEST(Collate, FollowsStructure) {
  const auto example = collate(std::vector<Example<Tensor, int64_t>>{{value(1), 4}, {value(2), 5}});
  EXPECT_EQ(example.data.sizes().vec(), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_TRUE(example.target.equal(torch::tensor({4, 5})));
  const auto pair = collate(std::vector<std::pair<Tensor, std::string>>{{value(1), "a"}, {value(2), "b"}});
  EXPECT_EQ(pair.second, (std::vector<std::string>{"a", "b"}));
  const auto map = collate(std::vector<std::map<std::string, Tensor>>{{{"x", value(1)}, {"y", value(2)}},
                                                                      {{"x", value(3)}, {"y", value(4)}}});
  EXPECT_EQ(map.at("y")[1][0][0].item<float>(), 4);
  const auto named = collate(std::vector<Named>{{value(1), {value(2), value(3, {1})}, value(4)},
                                                {value(5), {value(6), value(7, {1})}, value(8)}});
  EXPECT_EQ(named.boxes[1].sizes().vec(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(named.weight->size(0), 2);
  const std::vector<Odd> odd{Odd(value(1)), Odd(value(2))};
  const auto odds = collate(odd);
  EXPECT_EQ(odds.t.size(0), 2);
  EXPECT_EQ(odd[0].t.dim(), 2) << "samples stay as they are";
  const auto array = collate(std::vector<std::array<float, 2>>{{1, 2}, {3, 4}, {5, 6}});
  EXPECT_TRUE(array[1].equal(torch::tensor({2.0f, 4.0f, 6.0f})));
}

template <class S>
void expect_uneven(const std::vector<S>& samples, const std::string& what) {
  try {
    (void)collate(samples);
    ADD_FAILURE() << "batched: " << what;
  } catch (const UsageError& e) {
    EXPECT_EQ(e.id(), "MU100");
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
}

TEST(Collate, SamplesMustBeAlike) {
  expect_uneven<Tensor>({value(1), value(1, {3, 2})}, "sample 1 of 2");
  expect_uneven<Tensor>({value(1), value(1).to(at::kDouble)}, "Double");
  expect_uneven<Tensor>({value(1), Tensor()}, "undefined");
  expect_uneven<Tensor>({value(1).to_sparse()}, "sparse");
  expect_uneven<std::vector<Tensor>>({{value(1)}, {}}, "lengths");
  expect_uneven<std::map<std::string, Tensor>>({{{"a", value(1)}}, {{"b", value(1)}}}, "keys");
  expect_uneven<std::optional<Tensor>>({value(1), std::nullopt}, "optional");
  expect_uneven<Tensor>({}, "no samples");
}

TEST(EnsureTensor, KeepsMemoryThatSuffices) {
  Tensor t;
  ensure_tensor(t, {4, 3}, at::kFloat);
  const auto* place = t.const_data_ptr();
  ensure_tensor(t, {2, 3}, at::kFloat);
  EXPECT_EQ(t.const_data_ptr(), place);
  EXPECT_EQ(t.sizes().vec(), (std::vector<int64_t>{2, 3}));
  ensure_tensor(t, {3, 4}, at::kFloat);
  EXPECT_EQ(t.const_data_ptr(), place);
  EXPECT_TRUE(t.is_contiguous());
  ensure_tensor(t, {3, 4}, at::kLong);
  EXPECT_EQ(t.scalar_type(), at::kLong);
  ensure_tensor(t, {100}, at::kLong);
  EXPECT_EQ(t.numel(), 100);
}

TEST(Collate, ReusesTheBatchItIsGiven) {
  Tensor batch;
  StackPlace place{.count = 2};
  collate_into<Tensor>(batch, value(1), place);
  const auto* memory = batch.const_data_ptr();
  collate_into<Tensor>(batch, value(2), place);
  EXPECT_EQ(batch.const_data_ptr(), memory);
}

}  // namespace
}  // namespace muster::tree
