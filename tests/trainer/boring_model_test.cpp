#include "muster/trainer/boring_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/trainer.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

/// Its second layer is made by the hook of the older name.
struct LateModel : BoringModel {
  torch::nn::Linear late = nullptr;
  int calls = 0;
  void configure_sharded_model() override {
    ++calls;
    if (!late) late = register_module("late", torch::nn::Linear(2, 2));
  }
  at::Tensor forward(at::Tensor x) { return late(layer(x)); }
  at::Tensor training_step(at::Tensor batch, int64_t) { return loss(forward(batch)); }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
};

TEST(BoringModel, ConfigureShardedModelIsTheOlderNameOfConfigureModel) {
  Trainer trainer(testing::quiet({.limit_train_batches = 3, .limit_val_batches = 0, .max_epochs = 1}));
  LateModel model;
  trainer.fit(model);
  EXPECT_EQ(model.calls, 1);
  EXPECT_EQ(trainer.global_step(), 3);
  EXPECT_EQ(model.parameters().size(), 4U);
  const auto trained = model.late->weight.detach().clone();
  Trainer again(testing::quiet({.limit_train_batches = 1, .limit_val_batches = 0, .max_epochs = 1}));
  again.fit(model);
  EXPECT_EQ(model.calls, 2);
  EXPECT_FALSE(torch::equal(model.late->weight, trained));
}

}  // namespace
}  // namespace muster
