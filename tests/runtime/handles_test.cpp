#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

/// Has a handle of its own class, which is incomplete where the member stands, and takes its input by reference.
struct TeacherImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor& x) {
    seen = x.scalar_type();
    auto result = layer(x);
    x = result;  // as some programs do
    return result;
  }
  torch::Tensor both(torch::Tensor& x, const std::vector<torch::Tensor>& more) { return layer(x) + layer(more.at(0)); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 3))};
  torch::ScalarType seen = torch::kInt;
  Model<TeacherImpl> student;
};
TORCH_MODULE(Teacher);

class Trainer {
 public:
  void set_up(Accelerator& accelerator) {
    std::tie(model, optimizer, scheduler, loader) = accelerator.prepare(
        torch::nn::Linear(2, 1), [](auto p) { return torch::optim::SGD(p, 0.5); },
        [](torch::optim::Optimizer& o) { return ExponentialLR(o, {.gamma = 0.5}); },
        DataLoader(std::vector<torch::Tensor>{torch::ones(2), torch::ones(2)}));
  }
  Model<torch::nn::LinearImpl> model;
  Optimizer optimizer;
  Scheduler scheduler;
  DataLoader<torch::Tensor> loader;
};

TEST(Handles, AnEmptyOneThatIsUsedIsAnErrorByName) {
  Trainer trainer;
  EXPECT_FALSE(trainer.model || trainer.optimizer || trainer.scheduler || trainer.loader);
  const auto id = [](auto&& f) { return testing::thrown_id(f); };
  EXPECT_EQ(id([&] { trainer.model(torch::ones({1, 2})); }), "MU322");
  EXPECT_EQ(id([&] { trainer.model->parameters(); }), "MU322");
  EXPECT_EQ(id([&] { (void)*trainer.model; }), "MU322");
  EXPECT_EQ(id([&] { (void)trainer.model.prepared(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.model.grad_norm(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.optimizer.step(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.optimizer->param_groups(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.scheduler.step(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.scheduler.step(1.0); }), "MU322");
  EXPECT_EQ(id([&] { (void)trainer.scheduler->last_epoch(); }), "MU322");
  EXPECT_EQ(id([&] { trainer.loader.size(); }), "MU322");
  Accelerator accelerator;
  EXPECT_EQ(id([&] { accelerator.prepare(trainer.loader); }), "MU322");
  EXPECT_EQ(id([&] { accelerator.clip_grad_norm_(trainer.model, 1.0); }), "MU322");
  EXPECT_EQ(id([&] { accelerator.save_model(trainer.model, "nowhere"); }), "MU322");
}

TEST(Handles, AreMembersThatAreAssignedLater) {
  Accelerator accelerator;
  Trainer trainer;
  trainer.set_up(accelerator);
  EXPECT_TRUE(trainer.model && trainer.optimizer && trainer.scheduler && trainer.loader);
  const auto before = trainer.model->weight.detach().clone();
  for (auto& x : *trainer.loader) {
    trainer.optimizer.zero_grad();
    accelerator.backward(trainer.model(x).sum());
    trainer.optimizer.step();
    trainer.scheduler.step();
  }
  EXPECT_FALSE(torch::equal(before, (*trainer.model).weight));
  EXPECT_DOUBLE_EQ((*trainer.optimizer).param_groups().at(0).options().get_lr(), 0.125);
  accelerator.free_memory(trainer.model, trainer.optimizer, trainer.scheduler, trainer.loader);
  EXPECT_FALSE(trainer.model || trainer.optimizer || trainer.scheduler || trainer.loader);
}

TEST(Handles, OneOfAModulesOwnClassMayBeItsMember) {
  Accelerator accelerator;
  Teacher teacher;
  EXPECT_FALSE(teacher->student);
  teacher->student = accelerator.prepare(Teacher());
  auto model = accelerator.prepare(teacher);
  EXPECT_NE(model.ptr(), model->student.ptr());
  EXPECT_EQ(model->student(torch::ones({1, 3})).size(1), 3);
}

TEST(Handles, CallAForwardThatTakesItsInputByReference) {
  Accelerator accelerator;
  auto model = accelerator.prepare(Teacher());
  auto x = torch::ones({1, 3});
  const auto expected = model->layer(x);
  EXPECT_TRUE(torch::equal(model(x), expected));
  EXPECT_TRUE(torch::equal(x, expected));  // the caller's own tensor
  const auto constant = torch::ones({1, 3});
  EXPECT_TRUE(torch::equal(model(constant), expected));
  EXPECT_TRUE(torch::equal(constant, torch::ones({1, 3})));
  EXPECT_TRUE(torch::equal(model(torch::ones({1, 3})), expected));
}

TEST(Handles, ConvertAnInputThatIsTakenByReference) {
  Fabric fabric({.precision = "bf16-true"});
  auto model = fabric.setup(Teacher());
  auto x = torch::ones({1, 3});
  EXPECT_EQ(model(x).scalar_type(), torch::kFloat);
  EXPECT_EQ(model->seen, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(x, torch::ones({1, 3})));
  EXPECT_EQ(model.run(&TeacherImpl::both, x, std::vector<torch::Tensor>{x}).size(1), 3);
}

struct TwoHeadsImpl : torch::nn::Module {
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor x) { return {layer(x), x}; }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(2, 3))};
};
TORCH_MODULE(TwoHeads);

TEST(Handles, PrepareASequentialAndAnAnyModule) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto [sequential, sgd, any, adam] = accelerator.prepare(
      torch::nn::Sequential(torch::nn::Linear(2, 4), torch::nn::ReLU(), torch::nn::Linear(4, 1)),
      [](auto parameters) { return torch::optim::SGD(parameters, 0.1); }, torch::nn::AnyModule(torch::nn::Linear(2, 3)),
      [](torch::nn::Module& module) { return torch::optim::Adam(module.parameters(), 0.1); });
  EXPECT_EQ(sequential(torch::ones({5, 2})).sizes(), torch::IntArrayRef({5, 1}));
  const auto before = any->parameters().at(0).detach().clone();
  auto loss = sequential(torch::ones({5, 2})).sum() + any(torch::ones({5, 2})).sum();
  accelerator.backward(loss);
  sgd.step();
  adam.step();
  EXPECT_FALSE(torch::equal(before, any->parameters().at(0)));
  EXPECT_EQ(accelerator.unwrap_model(any), any.ptr());
  auto two = accelerator.prepare(torch::nn::AnyModule(TwoHeads()));
  const auto [left, right] = two.forward<std::tuple<torch::Tensor, torch::Tensor>>(torch::ones({1, 2}));
  EXPECT_EQ(left.size(1), 3);
  EXPECT_EQ(right.size(1), 2);
  EXPECT_EQ(testing::thrown_id([&] { accelerator.prepare(torch::nn::AnyModule()); }), "MU173");
  Model<torch::nn::AnyModule> empty;
  EXPECT_EQ(testing::thrown_id([&] { empty(torch::ones(2)); }), "MU322");
}

/// A Sequential and an AnyModule on two ranks equal the plain training of one rank.
void train_erased(const char* strategy) {
  const auto data = torch::cos(torch::arange(8, torch::kFloat)).view({4, 2});
  torch::manual_seed(2);
  torch::nn::Sequential plain(torch::nn::Linear(2, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
  auto copied = torch::nn::Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone()));
  torch::optim::SGD sgd(plain->parameters(), 0.5);
  plain->forward(data).square().mean().backward();
  sgd.step();
  Accelerator accelerator({.strategy = strategy});
  auto [model, optimizer] =
      accelerator.prepare(copied, [](auto parameters) { return torch::optim::SGD(parameters, 0.5); });
  auto any = accelerator.prepare(torch::nn::AnyModule(torch::nn::Linear(2, 1)));
  const auto x = accelerator.split_between_processes(data);
  accelerator.backward(model(x).square().mean() + 0 * any(x).sum());
  optimizer.step();
  const auto mine = model(x).detach();
  EXPECT_TRUE(torch::allclose(accelerator.gather(mine), plain->forward(data), 1e-4, 1e-5)) << strategy;
}

TEST(Handles, ErasedModulesTrainOnTwoRanks) {
  testing::as_ranks(2, [] {
    train_erased("ddp");
    train_erased("fsdp");
  });
}

TEST(ReadyBatches, CountEverySampleOnceOnTwoRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    const std::vector<torch::Tensor> list{torch::tensor({0, 1}), torch::tensor({2}), torch::tensor({3, 4, 5})};
    auto loader = accelerator.prepare(DataLoader(from_batches(list), {.shuffle = true}));
    EXPECT_EQ(loader.size(), 2);
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<torch::Tensor> seen;
      for (auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch));
      EXPECT_TRUE(torch::equal(std::get<0>(torch::cat(seen).sort()), torch::arange(6)));
    }
  });
}

}  // namespace
}  // namespace muster
