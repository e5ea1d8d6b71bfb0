#pragma once

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"

namespace muster::runtime {

/// Calls a module's forward: forward(module, inputs...).
struct Forward {
  template <class M, class... A>
  auto operator()(M& module, A&&... inputs) const -> decltype(module.forward(std::forward<A>(inputs)...)) {
    return module.forward(std::forward<A>(inputs)...);
  }
};

struct PreparedModel;

/// Call the functions of these names of the model's PrecisionPolicy.
void convert_input(const PreparedModel& model, at::Tensor& tensor);
void convert_output(const PreparedModel& model, at::Tensor& tensor);

/// Converts the inputs of a call by PrecisionPolicy::convert_input(). Converted inputs are copies.
struct InputConversion {
  const PreparedModel& model;

  /// Converts a tensor; passes on any other value.
  template <class T>
  decltype(auto) tensor(T&& value) const {
    if constexpr (tree::tensor<T>) {
      at::Tensor result = std::forward<T>(value);
      convert_input(model, result);
      return result;
    } else {
      return std::forward<T>(value);
    }
  }
  /// Converts a tensor or a nesting of tensors; passes on any other value.
  template <class T>
  decltype(auto) nesting(T&& value) const {
    if constexpr (!tree::tensor<T> && tree::nests_tensors<T>)
      return tree::transform(std::remove_cvref_t<T>(std::forward<T>(value)), [&](at::Tensor one) {
        convert_input(model, one);
        return one;
      });
    else return tensor(std::forward<T>(value));
  }
  /// Returns a tensor as an lvalue, for a parameter of type Tensor&: the caller's tensor, or `copy` if the precision
  /// converts it. `copy` lives until the end of the call.
  template <class T>
  decltype(auto) reference(T&& value, at::Tensor&& copy = at::Tensor()) const {
    if constexpr (tree::tensor<T>) {
      copy = value;
      convert_input(model, copy);
      at::Tensor* used = &copy;
      if constexpr (std::same_as<T, at::Tensor&>)
        if (copy.is_same(value)) used = &value;
      return *used;
    } else {
      return nesting(std::forward<T>(value));
    }
  }
};

template <class T>
using nesting_input_t = decltype(std::declval<const InputConversion&>().nesting(std::declval<T>()));
template <class T>
using tensor_input_t = decltype(std::declval<const InputConversion&>().tensor(std::declval<T>()));
template <class T>
using reference_input_t = decltype(std::declval<const InputConversion&>().reference(std::declval<T>()));

/// Returns entry(module, inputs...) with converted inputs. A nesting of tensors that `entry` takes by reference is
/// passed unchanged, and so is a tensor that it takes by Tensor&, unless the tensor needs conversion.
template <class F, class M, class... A>
decltype(auto) call_converted(const PreparedModel& model, F&& entry, M& module, A&&... inputs) {
  const InputConversion convert{model};
  if constexpr (std::invocable<F, M&, nesting_input_t<A>...>) {
    return std::invoke(std::forward<F>(entry), module, convert.nesting(std::forward<A>(inputs))...);
  } else if constexpr (std::invocable<F, M&, tensor_input_t<A>...>) {
    return std::invoke(std::forward<F>(entry), module, convert.tensor(std::forward<A>(inputs))...);
  } else {
    static_assert(std::invocable<F, M&, reference_input_t<A>...>,
                  "the module's forward, or the function given to run, does not take these arguments");
    return std::invoke(std::forward<F>(entry), module, convert.reference(std::forward<A>(inputs))...);
  }
}

}  // namespace muster::runtime
