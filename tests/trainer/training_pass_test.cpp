#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/data/combined.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::training_pass {
namespace {

using testing::CountingModule, testing::quiet;
using Row = std::vector<double>;
using Rows = std::vector<Row>;
using Batch = torch::Tensor;

constexpr double kNone = -1;
double value(const Batch* batch) { return batch ? batch->item<double>() : kNone; }

struct Noted : TrainerModule {
  Batch w = register_parameter("w", torch::ones({}));
  Rows seen = {};
  Batch noted(Row row) {
    Batch loss = w * row.front();
    seen.push_back(std::move(row));
    return loss;
  }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};
struct SideBySide : Noted {
  Batch training_step(std::tuple<Batch&, Batch&>& batch, int64_t) {
    return noted({value(&std::get<0>(batch)), value(&std::get<1>(batch))});
  }
};
struct Longest : Noted {
  Batch training_step(std::tuple<Batch*, Batch*>& batch, int64_t) {
    return noted({value(std::get<0>(batch)), value(std::get<1>(batch))});
  }
};
struct Listed : Noted {
  Batch training_step(std::vector<Batch*>& batches, int64_t) {
    Row row;
    for (const auto* batch : batches) row.push_back(value(batch));
    return noted(row);
  }
};
struct InTurn : Noted {
  Batch training_step(Batch& batch, int64_t batch_idx, int64_t dataloader_idx) {
    return noted({value(&batch), static_cast<double>(batch_idx), static_cast<double>(dataloader_idx)});
  }
};

auto numbers(int64_t count) { return CountingModule::numbers(count); }

template <class Module, class Loaders>
Rows fit(const Loaders& loaders, TrainerOptions options = {.max_epochs = 1}) {
  Module module;
  Trainer(quiet(std::move(options))).fit(module, loaders);
  return module.seen;
}

TEST(TrainingPass, EndsWithTheShortestOrTheLongestLoader) {
  const auto of = [](CombineMode mode) { return combine(mode, numbers(2), numbers(3)); };
  EXPECT_EQ(fit<SideBySide>(of(CombineMode::min_size)), (Rows{{0, 0}, {1, 1}}));
  EXPECT_EQ(fit<SideBySide>(of(CombineMode::max_size_cycle)), (Rows{{0, 0}, {1, 1}, {0, 2}}));
  EXPECT_EQ(fit<SideBySide>(of(CombineMode::min_size), {.max_epochs = 2}), (Rows{{0, 0}, {1, 1}, {0, 0}, {1, 1}}));
}

TEST(TrainingPass, ALoaderThatHasEndedGivesNoBatch) {
  EXPECT_EQ(fit<Longest>(combine_longest(numbers(3), numbers(1))), (Rows{{0, 0}, {1, kNone}, {2, kNone}}));
}

TEST(TrainingPass, AListOfLoadersGivesAListOfBatches) {
  const std::vector loaders{numbers(3), numbers(2)};
  EXPECT_EQ(fit<Listed>(loaders), (Rows{{0, 0}, {1, 1}, {2, 0}}));
  EXPECT_EQ(fit<Listed>(std::vector{numbers(2)}), (Rows{{0}, {1}}));
}

TEST(TrainingPass, LoadersInSequenceCountAsOne) {
  EXPECT_EQ(fit<InTurn>(in_sequence(numbers(2), numbers(1))), (Rows{{0, 0, 0}, {1, 1, 0}, {0, 2, 1}}));
  EXPECT_EQ(fit<InTurn>(in_sequence(numbers(0), numbers(1)), {.max_epochs = 2}), (Rows{{0, 0, 1}, {0, 0, 1}}));
}

TEST(TrainingPass, WindowsOfGradientsGoOverTheEndOfALoader) {
  InTurn module;
  Trainer trainer(quiet({.accumulate_grad_batches = 2, .max_epochs = 1}));
  trainer.fit(module, in_sequence(numbers(3), numbers(2)));
  EXPECT_EQ(trainer.global_step(), 3);
  EXPECT_NEAR(module.w.item<double>(), 0.75, 1e-6);  // 1 - 0.1 * ((0 + 1) / 2 + (2 + 0) / 2 + 1)
}

TEST(TrainingPass, ValidationComesAtTheEndOfWhatIsCombined) {
  struct Validated : SideBySide {
    std::vector<int64_t> after = {};
    void validation_step(Batch&, int64_t) { after.push_back(std::ssize(seen)); }
  };
  Validated module;
  Trainer(quiet({.max_epochs = 1})).fit(module, combine(CombineMode::min_size, numbers(2), numbers(3)), numbers(1));
  EXPECT_EQ(module.after, (std::vector<int64_t>{2}));
}

struct SavesAfter : Callback {
  int64_t batches = 0;
  std::filesystem::path folder = {};
  void on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                          BatchPlace at) override {
    if (at.batch_idx + 1 == batches) trainer.save_checkpoint(folder);
  }
};

template <class Module, class Loaders>
void expect_resumes(const Loaders& loaders, int64_t total) {
  for (int64_t done = 1; done < total; ++done) {
    const testing::TemporaryFolder folder;
    const auto saves = std::make_shared<SavesAfter>();
    saves->batches = done;
    saves->folder = folder.path() / "saved";
    const auto whole = fit<Module>(loaders, {.callbacks = {saves}, .max_epochs = 1});
    ASSERT_EQ(std::ssize(whole), total);
    Module module;
    Trainer(quiet({.max_epochs = 1})).fit(module, loaders, {.ckpt_path = saves->folder.string()});
    EXPECT_EQ(module.seen, Rows(whole.begin() + done, whole.end())) << "after " << done;
  }
}

TEST(TrainingPass, ResumesWhereSeveralLoadersStood) {
  expect_resumes<SideBySide>(combine(CombineMode::max_size_cycle, numbers(4), numbers(6)), 6);
  expect_resumes<SideBySide>(combine(CombineMode::min_size, numbers(4), numbers(6)), 4);
  expect_resumes<Longest>(combine_longest(numbers(2), numbers(4)), 4);
  expect_resumes<InTurn>(in_sequence(numbers(2), numbers(3)), 5);
}

}  // namespace
}  // namespace muster::training_pass
