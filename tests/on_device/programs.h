#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

/// Programs of the public API that train a small net, and their results. Tensors of the device are staged between
/// ranks.
namespace muster::on_device {

/// What a program is made of, and on how many ranks it runs.
struct Case {
  std::string strategy;   ///< "none", "ddp", "zero1", "zero2", "fsdp" or "hsdp"
  std::string precision;  ///< "32-true", "bf16-mixed", "16-mixed", "bf16-true" or "16-true"
  std::string use;        ///< what the program does beside training
  int world = 1;
  std::string text() const { return strategy + ", " + precision + ", " + use + ", ranks: " + std::to_string(world); }
};

/// Why there is no such program; empty if there is one.
std::string why_not(const Case& one);

/// The weights at the end, whole and on the host.
using Weights = std::vector<std::pair<std::string, at::Tensor>>;
/// Collective. `folder`: for checkpoints, the same on every rank.
Weights run(const Case& one, bool on_cpu, const std::filesystem::path& folder);

}  // namespace muster::on_device
