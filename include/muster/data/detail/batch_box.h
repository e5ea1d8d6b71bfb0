#pragma once

#include <concepts>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/pack.h"
#include "muster/tree/detail/visit.h"

namespace muster::data {

/// One batch, type-erased.
class BatchBox {
 public:
  virtual ~BatchBox() = default;
  virtual void visit(const std::function<void(at::Tensor&)>& f) = 0;
  /// Serialises the batch for another rank (pack) and restores it (unpack). Throws: UsageError (MU111, MU112).
  virtual at::Tensor pack() const { refuse_sending(); }
  virtual void unpack(const at::Tensor&) { refuse_sending(); }

 protected:
  [[noreturn]] static void refuse_sending();  ///< throws UsageError (MU112)
};

template <class Batch>
class BatchBoxOf : public BatchBox {
 public:
  void visit(const std::function<void(at::Tensor&)>& f) override {
    if (batch) tree::visit(*batch, f);
  }
  std::optional<Batch> batch;
};

/// A batch that can be sent to other ranks.
template <class Batch>
class SendableBox final : public BatchBoxOf<Batch> {
 public:
  at::Tensor pack() const override { return tree::pack(*this->batch); }
  void unpack(const at::Tensor& packed) override {
    if constexpr (std::default_initializable<Batch>) this->batch.emplace(tree::unpack<Batch>(packed));
    else this->refuse_sending();
  }
};

}  // namespace muster::data
