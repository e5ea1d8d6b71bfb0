#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/pack.h"

namespace muster::comm {
class Communicator;
}

/// Values that are sent as bytes: strings, numbers, tensors and structures of them; see tree/detail/pack.h.
namespace muster::runtime {

bool is_alone(const comm::Communicator& group);
bool is_rank(const comm::Communicator& group, int rank);
/// Returns the packed values of all ranks, in rank order. Collective.
std::vector<at::Tensor> gather_packed(const comm::Communicator& group, const at::Tensor& packed);
/// Returns the packed value of rank `source`; `packed` is read on that rank only. Collective.
at::Tensor broadcast_packed(const comm::Communicator& group, const at::Tensor& packed, int source);

/// Returns the value of rank `source`. Collective.
template <class T>
T broadcast_object(const comm::Communicator& group, const T& value, int source) {
  if (is_alone(group)) return value;
  const bool here = is_rank(group, source);
  const auto packed = broadcast_packed(group, here ? tree::pack(value) : at::Tensor(), source);
  return here ? value : tree::unpack<T>(packed);
}

/// Returns the values of all ranks, in rank order. Collective.
template <class T>
std::vector<T> gather_object(const comm::Communicator& group, const T& value) {
  std::vector<T> all;
  for (const auto& packed : gather_packed(group, tree::pack(value))) all.push_back(tree::unpack<T>(packed));
  return all;
}

/// Returns the elements of all ranks' lists, joined in rank order; lists may have different lengths. Collective.
template <class T>
std::vector<T> gather_object(const comm::Communicator& group, const std::vector<T>& values) {
  std::vector<T> all;
  for (const auto& packed : gather_packed(group, tree::pack(values)))
    for (auto&& element : tree::unpack<std::vector<T>>(packed)) all.push_back(std::move(element));
  return all;
}

}  // namespace muster::runtime
