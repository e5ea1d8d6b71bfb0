#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <typeinfo>

#include <ATen/core/Tensor.h>

namespace muster {

namespace trainer {
/// The type information of a type-erased batch.
struct BatchType {
  const std::type_info* type;
  void (*visit)(void* batch, const std::function<void(at::Tensor&)>& f);
};
[[noreturn]] void refuse_batch_type(const std::type_info& wanted, const std::type_info& given);
}  // namespace trainer

/// The position of a batch.
struct BatchPlace {
  int64_t batch_idx = 0;
  int64_t dataloader_idx = 0;
};

/// A type-erased view of a batch, for callbacks. Valid only in the hook that receives it.
class BatchView {
 public:
  BatchView(void* batch, const trainer::BatchType& type) : batch_(batch), type_(&type) {}
  /// Throws: UsageError (MU447) if the batch is not a T.
  template <class T>
  T& get() const {
    if (*type_->type != typeid(T)) trainer::refuse_batch_type(typeid(T), *type_->type);
    return *static_cast<T*>(batch_);
  }
  /// Calls f on every tensor of the batch.
  void visit(const std::function<void(at::Tensor&)>& f) const { type_->visit(batch_, f); }
  /// The first dimension of the first tensor that has one; 1 without such a tensor.
  int64_t size() const;

 private:
  void* batch_;
  const trainer::BatchType* type_;
};

/// What a step returned.
struct StepOutput {
  at::Tensor loss = {};  ///< undefined: no loss, and a training batch is left out
  std::any value = {};   ///< the returned value, with its type; empty if it is only a tensor
  template <class T>
  const T* get_if() const noexcept {
    return std::any_cast<T>(&value);
  }
};

/// What on_train_batch_start may return.
enum class EpochFlow : std::uint8_t { continue_epoch, skip_rest };

}  // namespace muster
