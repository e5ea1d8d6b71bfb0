#include "comm/bytes.h"

#include <ATen/ops/from_blob.h>

namespace muster::comm {

at::Tensor bytes_tensor(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions().dtype(at::kByte));
}

std::string to_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
}

std::vector<std::string> to_bytes(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> all;
  for (const auto& tensor : tensors) all.push_back(to_bytes(tensor));
  return all;
}

}  // namespace muster::comm
