#pragma once

#include <ATen/core/Tensor.h>

#include "format/safetensors.h"
#include "muster/checkpoint/weights.h"

/// How LibTorch's tensors stand in a file: their types and shapes, and tied ones once.
namespace muster::checkpoint {

/// LibTorch's type with the same bits; nullopt if there is none.
std::optional<at::ScalarType> scalar_type(format::ElementType type);

/// The tensor's description in a file. LibTorch counts pairs of 4-bit elements, the format counts elements.
/// Throws: CheckpointError MU203 if the format cannot hold the tensor; `file` is for the message.
format::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor, const std::string& file);

/// The shape in LibTorch of a tensor in a file.
/// Throws: CheckpointError MU207 if LibTorch has no such type.
std::vector<int64_t> shape_of(const format::TensorSpec& entry, const std::string& file);

/// Type and shape: "F32 [2, 3]".
std::string description(const at::Tensor& tensor);

/// The first names for the end of a message: " a, b and 3 more".
std::string list_of(const std::vector<std::string>& names);

/// What keeps the values of `source` from being loaded, for the end of a message: "; <differ>: a; the <source> lacks:
/// b; only the <source> has: c". Empty if they fit; names that one side lacks count only if `strict`.
std::string mismatch(const std::string& source, const std::string& differ, const std::vector<std::string>& different,
                     const IncompatibleKeys& names, bool strict);

/// Whether both are the same view of the same memory. Always false for tensors without elements.
bool are_tied(const at::Tensor& a, const at::Tensor& b);

/// Tensors without ties, and for each dropped name the name that was kept.
struct UntiedTensors {
  std::map<std::string, std::string> kept_name_of;
  NamedTensors tensors;  ///< kept tensors, in the given order
};

/// Drops all but the alphabetically first name of every tie.
UntiedTensors drop_tied(const NamedTensors& tensors);

}  // namespace muster::checkpoint
