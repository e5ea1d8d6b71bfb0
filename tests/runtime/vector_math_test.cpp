#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

/// Where MKL keeps its choice of vector kernels: the function that returns it begins by reading it, `mov eax, [rip +
/// distance]`.
const int* place_of_choice() {
  const auto* code = static_cast<const unsigned char*>(dlsym(RTLD_DEFAULT, "mkl_vml_serv_cpu_detect"));
  if (!code || code[0] != 0x8b || code[1] != 0x05) return nullptr;
  int32_t distance = 0;
  std::memcpy(&distance, code + 2, sizeof distance);
  return reinterpret_cast<const int*>(code + 6 + distance);
}

void expect_settled_by(const std::function<void()>& make, const char* label) {
  if (!place_of_choice())
    GTEST_SKIP() << "this LibTorch has no MKL, or one that chooses its vector kernels in another way";
  testing::as_ranks(
      1,
      [&] {
        const int* choice = place_of_choice();
        EXPECT_EQ(*choice, -1) << "something called vector math before";
        make();
        EXPECT_NE(*choice, -1);
      },
      label);
}

struct FourNumbers {
  torch::Tensor get(int64_t i) const { return torch::tensor(i); }
  int64_t size() const { return 4; }
};

TEST(VectorMath, IsSettledWhereALoaderIsMade) {
  expect_settled_by([] { const DataLoader loader(FourNumbers(), {.workers = 2}); }, "loader");
}

TEST(VectorMath, IsSettledWhereARuntimeIsMade) {
  expect_settled_by([] { const Accelerator accelerator; }, "runtime");
}

}  // namespace
}  // namespace muster
