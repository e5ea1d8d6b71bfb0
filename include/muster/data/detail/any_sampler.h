#pragma once

#include <concepts>
#include <memory>
#include <utility>

namespace muster {

class BatchSampler;
class Sampler;

namespace data {
/// Any sampler, as a value or in a shared_ptr.
class AnySampler {
 public:
  template <class S>
    requires std::derived_from<S, Sampler>
  AnySampler(std::shared_ptr<S> sampler) : sampler_(std::move(sampler)) {}
  template <class S>
    requires std::derived_from<S, BatchSampler>
  AnySampler(std::shared_ptr<S> sampler) : batch_sampler_(std::move(sampler)) {}
  template <class S>
    requires(std::derived_from<S, Sampler> || std::derived_from<S, BatchSampler>)
  AnySampler(S sampler) : AnySampler(std::make_shared<S>(std::move(sampler))) {}

  const std::shared_ptr<Sampler>& sampler() const noexcept { return sampler_; }
  const std::shared_ptr<BatchSampler>& batch_sampler() const noexcept { return batch_sampler_; }

 private:
  std::shared_ptr<BatchSampler> batch_sampler_;
  std::shared_ptr<Sampler> sampler_;
};
}  // namespace data

}  // namespace muster
