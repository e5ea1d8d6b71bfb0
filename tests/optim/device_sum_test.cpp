#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "optim/device_norm.h"

namespace muster::optim {
namespace {

ExactSum::Words by_loops(const at::Tensor& tensor, double p) {
  ExactSum sum;
  if (tensor.scalar_type() == at::kDouble) add_powers(sum, tensor.const_data_ptr<double>(), tensor.numel(), p);
  else add_powers(sum, tensor.const_data_ptr<float>(), tensor.numel(), p);
  return sum.words();
}

ExactSum::Words by_operators(const std::vector<at::Tensor>& tensors, double p) {
  ExactSum sum;
  add_device_powers(sum, tensors, p);
  return sum.words();
}

/// Values of all sizes, denormal ones too.
at::Tensor wide(int64_t count, at::ScalarType dtype) {
  const auto exponents = at::arange(count, at::kDouble).mul(0.37).sin().mul(dtype == at::kDouble ? 1020 : 140);
  return at::arange(count, at::kDouble).mul(1.7).cos().mul(exponents.exp2()).to(dtype);
}

TEST(DeviceSum, HasTheWordsOfTheLoops) {
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const double p : {2.0, 1.0})
      for (const int64_t count : {1, 63, 64, 65, 1000, 4096}) {
        const auto tensor = wide(count, dtype);
        EXPECT_EQ(by_operators({tensor}, p), by_loops(tensor, p)) << dtype << " " << p << " " << count;
      }
  EXPECT_EQ(by_operators({}, 2), ExactSum::Words{});
  EXPECT_EQ(by_operators({at::empty({0})}, 2), ExactSum::Words{});
}

TEST(DeviceSum, DoesNotDependOnTheDivisionIntoTensors) {
  const auto whole = wide(64 * 7 + 5, at::kFloat);
  EXPECT_EQ(by_operators({whole.slice(0, 0, 128), whole.slice(0, 128, 448), whole.slice(0, 448)}, 2),
            by_loops(whole, 2));
}

TEST(DeviceSum, CountsWhatIsNotFinite) {
  auto tensor = wide(300, at::kFloat);
  tensor[3] = std::numeric_limits<float>::infinity();
  tensor[200] = std::numeric_limits<float>::quiet_NaN();
  tensor[201] = -std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(by_operators({tensor}, 2), by_loops(tensor, 2));
}

}  // namespace
}  // namespace muster::optim
