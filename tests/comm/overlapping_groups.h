#pragma once

#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// Operations of two groups of the same ranks under way at once, and one of a part of the ranks among them.
/// Collective: three ranks.
inline void expect_groups_overlap(const Communicator& comm) {
  const Communicator again = comm.duplicate(), ends = comm.subgroup({0, 2}), part = ends.duplicate();
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(at::full({i % 3 ? 9 : 200'000}, comm.rank() + i, at::kFloat));
    works.push_back((i % 2 ? comm : again).start_all_reduce(tensors.back()));
  }
  EXPECT_EQ(part.all_gather(at::full({3}, comm.rank()))[part.size() - 1][1].item<int>(), comm.rank() == 1 ? 1 : 2);
  for (int i = 0; i < 12; ++i) {
    works[i].wait();
    EXPECT_EQ(tensors[i][8].item<float>(), 3.f * static_cast<float>(i + 1)) << i;
  }
}

}  // namespace muster::comm
