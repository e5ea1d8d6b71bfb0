#include "comm/backend.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "muster/base/error.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

TEST(Backend, ServesCodeThatExpectsC10d) {
  testing::run_threads(2, 0, [](const Communicator& comm) {
    auto backend = make_backend(comm);
    std::vector<at::Tensor> one{at::full({4}, comm.rank() + 1.f)};
    auto work = backend->allreduce(one);
    work->wait();
    EXPECT_EQ(one[0][3].item<float>(), 3.f);
    at::Tensor in = at::full({2}, comm.rank(), at::kFloat), out = at::empty({4});
    backend->_allgather_base(out, in)->wait();
    EXPECT_EQ(out[2].item<float>(), 1.f);
    c10d::ReduceScatterOptions mean;
    mean.reduceOp = c10d::ReduceOp::AVG;
    backend->_reduce_scatter_base(in, out, mean)->wait();
    EXPECT_EQ(in[0].item<float>(), static_cast<float>(comm.rank()));
    std::vector<std::vector<at::Tensor>> lists{{at::empty({2}), at::empty({2})}};
    std::vector<at::Tensor> ins{in};
    backend->allgather(lists, ins)->wait();
    EXPECT_EQ(lists[0][1][0].item<float>(), 1.f);
    auto future = backend->broadcast(one)->getFuture();
    EXPECT_TRUE(future->completed());
    backend->barrier()->wait();
    EXPECT_EQ(backend->getBackendName(), "muster-threads");
  });
}

TEST(Backend, AProcessGroupCanCarryIt) {
  testing::run_threads(2, 0, [](const Communicator& comm) {
    auto group = c10::make_intrusive<c10d::ProcessGroup>(comm.rank(), comm.size());
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, make_backend(comm));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    std::vector<at::Tensor> tensors{at::ones({3})};
    group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].sum().item<float>(), 6.f);
  });
}

TEST(Backend, RefusesOtherReductions) {
  auto backend = make_backend(Communicator());
  std::vector<at::Tensor> tensors{at::ones({3}, at::kInt)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::BXOR;
  EXPECT_THROW(backend->allreduce(tensors, options), ConfigError);
}

}  // namespace
}  // namespace muster::comm
