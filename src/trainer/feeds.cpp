#include <algorithm>
#include <ranges>
#include <utility>

#include "core.h"
#include "muster/base/error.h"
#include "muster/runtime/detail/converted_call.h"
#include "muster/runtime/detail/loader_preparation.h"

namespace muster::trainer {
namespace {

struct KindNames {
  Hook loader;
  const char* step;
  const char* call;
};
constexpr KindNames kNames[] = {{Hook::train_dataloader, "training_step", "fit"},
                                {Hook::val_dataloader, "validation_step", "validate"},
                                {Hook::test_dataloader, "test_step", "test"},
                                {Hook::predict_dataloader, "predict_step", "predict"}};

}  // namespace

PreparedFeed& Core::feed(StepKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  auto& prepared = feeds_[index];
  if (prepared.made) return prepared;
  const auto& names = kNames[index];
  if (!task_.feeds[index])
    throw UsageError("MU444", std::string("there is no loader for ") + names.call +
                                  "(): give it one, or a data module "
                                  "or module with " +
                                  std::string(info(names.loader).name) + "() and " + names.step + "()");
  prepared.feed = hooks.run(names.loader, task_.feeds[index]);
  if (prepared.feed.parts.empty())
    throw UsageError("MU444", std::string("the list of loaders for ") + names.call + "() is empty; give at least one");
  for (const auto& part : prepared.feed.parts) {
    const auto* steps = part.steps ? part.steps : prepared.feed.joint_steps;
    prepared.loaders.push_back(
        prepare_loader(runtime, *part.loader,
                       {.filler_batches = kind != StepKind::training, .move_to_device = steps->transfer == nullptr}));
  }
  prepared.made = true;
  prepared_kinds_.push_back(kind);
  return prepared;
}

void Core::transfer(const StepTable& steps, void* batch, int64_t loader) {
  if (steps.transfer)
    hooks.run(Hook::on_batch_transfer, [&] { steps.transfer(task_.transfer_owner, batch, runtime.device(), loader); });
  steps.type.visit(batch, [&](at::Tensor& tensor) { runtime::convert_input(*model.prepared(), tensor); });
}

std::optional<int64_t> batches_in(const PreparedFeed& feed) {
  int64_t longest = 0;
  for (const auto& loader : feed.loaders) {
    const auto size = loader->known_size();
    if (!size) return std::nullopt;
    longest = std::max(longest, *size);
  }
  return longest;
}

TrainingPass::TrainingPass(PreparedFeed& feed, int64_t returned)
    : feed_(feed), length_(batches_in(feed)), returned_(returned) {
  for (const auto& loader : feed.loaders) passes_.push_back(loader->begin_pass());
  ended_.resize(passes_.size());
  const auto epoch_of = [](const auto& loader) { return loader->epoch(); };
  const auto first = std::ranges::min(feed.loaders | std::views::transform(epoch_of));
  for (std::size_t i = 0; i < ended_.size(); ++i)
    ended_[i] = feed.loaders[i]->epoch() > first;  // of a pass that is resumed
}

void* TrainingPass::next() {
  std::vector<void*> batches;
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    auto* box = passes_[i]->next();
    if (!box) {
      ended_[i] = true;
      if (std::ranges::all_of(ended_, [](bool ended) { return ended; })) return nullptr;
      passes_[i].reset();
      passes_[i] = feed_.loaders[i]->begin_pass();  // a shorter loader restarts, in its next epoch
      box = passes_[i]->next();
      if (!box) return nullptr;
    }
    batches.push_back(feed_.feed.parts[i].batch_in(*box));
  }
  ++returned_;
  return feed_.feed.joined ? feed_.feed.joined(batches) : batches.front();
}

bool TrainingPass::at_end() const {
  return passes_.size() == 1 ? feed_.loaders.front()->end_of_dataloader() : length_ && returned_ >= *length_;
}

}  // namespace muster::trainer
