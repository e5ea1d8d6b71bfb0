#include "loaders_in_use.h"

#include "muster/data/sample_split.h"

namespace muster::runtime {
namespace {

/// Whether every rank's batch has equally many samples.
bool is_equal(const data::LoaderState& loader) {
  const auto& options = loader.options();
  if (loader.sample_split().filler_batches) return loader.sample_split().world_size == 1;
  const bool even = loader.sample_split().even_batches.value_or(options.even_batches);
  return loader.total_batch_size() > 0 && (even || options.drop_last || loader.sample_split().world_size == 1);
}

}  // namespace

void LoadersInUse::add(const std::shared_ptr<data::LoaderState>& loader, std::optional<int64_t> place) {
  std::erase_if(loaders_, [](const auto& entry) { return entry.expired(); });
  std::erase_if(saved_, [](const auto& entry) { return entry.loader.expired(); });
  loaders_.push_back(loader);
  if (place) saved_.insert(std::ranges::upper_bound(saved_, *place, {}, &Saved::place), {*place, loader});
}

std::vector<std::shared_ptr<data::LoaderState>> LoadersInUse::saved() const {
  std::vector<std::shared_ptr<data::LoaderState>> alive;
  for (const auto& entry : saved_)
    if (auto loader = entry.loader.lock()) alive.push_back(std::move(loader));
  return alive;
}

LoadersInUse::Evenness LoadersInUse::set_even(std::optional<bool> even) const {
  Evenness before;
  for (const auto& entry : loaders_)
    if (auto loader = entry.lock(); loader && even) {
      before.emplace_back(loader, loader->sample_split().even_batches);
      loader->set_even_batches(even);
    }
  return before;
}

std::shared_ptr<data::LoaderState> LoadersInUse::innermost() const {
  std::shared_ptr<data::LoaderState> latest;
  for (const auto& entry : loaders_)
    if (auto loader = entry.lock(); loader && loader->running() && (!latest || loader->began() > latest->began()))
      latest = std::move(loader);
  return latest;
}

std::optional<int64_t> LoadersInUse::batches() const {
  const auto loader = innermost();
  return loader ? loader->known_size() : std::nullopt;
}

MicroBatch LoadersInUse::micro_batch(int world_size) const {
  const auto loader = innermost();
  if (!loader) return {.full = world_size, .total = world_size};
  const auto samples = loader->samples();
  return {.every_rank = samples.every_rank,
          .full = loader->total_batch_size(),
          .last = loader->end_of_dataloader(),
          .local = std::max<int64_t>(1, samples.local),
          .samples_left = samples.left,
          .total = samples.total};
}

std::optional<StepRows> LoadersInUse::rows() const {
  const auto loader = innermost();
  if (!loader) return std::nullopt;
  const auto samples = loader->samples();
  if (samples.local == 0) return std::nullopt;
  return StepRows{
      .equal = is_equal(*loader), .local = samples.local, .local_real = samples.local_real, .real = samples.real};
}

}  // namespace muster::runtime
