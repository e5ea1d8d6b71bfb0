#pragma once

#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/tree/detail/visit.h"
#include "muster/tree/per_rank.h"

namespace muster::runtime {

/// Concatenates along the first dimension. Returns an undefined tensor if any of them is undefined.
at::Tensor join_rows(const std::vector<at::Tensor>& parts);

/// Joins several values of the same structure, leaf by leaf, into the first value.
template <class T>
class Joiner {
 public:
  explicit Joiner(std::vector<T>& values) : values_(values) {}
  void operator()(at::Tensor& tensor) {
    std::vector<at::Tensor> parts;
    for (auto* part : leaves(tensor)) parts.push_back(*part);
    tensor = join_rows(parts);
    ++leaf_;
  }
  template <tree::plain_list L>
  void operator()(L& list) {
    for (auto* part : leaves(list))
      if (part != &list) list.insert(list.end(), part->begin(), part->end());
    ++leaf_;
  }

 private:
  template <class L>
  std::vector<L*> leaves(L&) {
    std::vector<L*> found;
    for (auto& value : values_) {
      int at = 0;
      tree::visit(value, Pointer<L>{at, leaf_, found});
    }
    return found;
  }
  template <class L>
  struct Pointer {
    int& at;
    int wanted;
    std::vector<L*>& found;
    void operator()(at::Tensor& tensor) const { take(tensor); }
    template <tree::plain_list O>
    void operator()(O& list) const {
      take(list);
    }
    template <class O>
    void take(O& leaf) const {
      if constexpr (std::is_same_v<O, L>)
        if (at == wanted) found.push_back(&leaf);
      ++at;
    }
  };

  std::vector<T>& values_;
  int leaf_ = 0;
};

/// Visitor for a value to which no rank has added anything. Throws: UsageError (MU254) for a tensor, which has no empty
/// form.
struct NothingGathered {
  [[noreturn]] void operator()(at::Tensor& tensor) const;
  template <tree::plain_list L>
  void operator()(L&) const {}
  template <class T>
  void operator()(PerRank<T>& value) const {
    tree::visit(value.value, *this);
  }
};

}  // namespace muster::runtime
