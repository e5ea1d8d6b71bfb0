#include "comm/arithmetic.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>

#include "comm/shared_memory/reduction.h"

namespace muster::comm {
namespace {

void combine(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: at::add_out(out, a, b); break;
    case ReduceOp::product: at::mul_out(out, a, b); break;
    default: break;
  }
}

void reduce_in_float(const at::Tensor& target, const std::vector<at::Tensor>& terms, ReduceOp op) {
  at::Tensor sum = terms[0].to(at::kFloat);
  for (std::size_t i = 1; i < terms.size(); ++i) combine(sum, sum, terms[i].to(at::kFloat), op);
  if (op == ReduceOp::mean) sum.div_(static_cast<double>(terms.size()));
  target.copy_(sum);
}

void reduce_in_order(const at::Tensor& target, const std::vector<at::Tensor>& terms, ReduceOp op) {
  std::vector<const void*> memory;
  for (const auto& term : terms) memory.push_back(term.const_data_ptr());
  void* const out = target.mutable_data_ptr();
  reduce_memory({&out, 1}, memory, static_cast<std::size_t>(target.numel()), target.scalar_type(), op);
}

}  // namespace

void reduce_terms(const at::Tensor& target, const std::vector<at::Tensor>& terms, int own, ReduceOp op) {
  if (target.numel() == 0) return;
  if (terms.size() == 1) {
    if (target.const_data_ptr() != terms[0].const_data_ptr()) at::Tensor(target).copy_(terms[0]);
    return;
  }
  // For equal values such as 0.0 and -0.0, LibTorch's kernels choose by the position of the elements, and so by how
  // they are divided.
  if (op == ReduceOp::min || op == ReduceOp::max) return reduce_in_order(target, terms, op);
  bool adds = op == ReduceOp::sum || op == ReduceOp::mean || op == ReduceOp::product;
  bool is_half = at::isReducedFloatingType(target.scalar_type());
  if (is_half && adds && (terms.size() > 2 || op == ReduceOp::mean)) return reduce_in_float(target, terms, op);
  at::Tensor out = target;
  at::Tensor partial = terms[own == 0 ? 1 : 0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    bool last = i + 1 == terms.size();
    combine(last ? out : partial, i == 1 ? terms[0] : partial, terms[i], op);
  }
  if (op == ReduceOp::mean) out.div_(static_cast<double>(terms.size()));
}

at::Tensor elements_at(const void* data, int64_t elements, const at::Tensor& like) {
  return at::from_blob(const_cast<void*>(data), {elements}, at::TensorOptions().dtype(like.scalar_type()));
}

}  // namespace muster::comm
