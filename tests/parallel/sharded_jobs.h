#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace muster::parallel::jobs {

/// A module and a use of it, with no trace of sharding: what parity tests train.
struct Job {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>(at::ScalarType)> make;  ///< the same values at every call
  /// The loss of one rank's part of a batch. Takes its dtype from the module's parameters.
  std::function<at::Tensor(torch::nn::Module&, int step, int rank)> loss;
  bool only_float = false;  ///< a use under bfloat16 autocast
};

/// An MLP, a network with batch norm, a transformer with tied embeddings, a module used twice, frozen parts, nested
/// blocks.
std::vector<Job> networks();
/// One job for each module of LibTorch with parameters, and for other uses of parameters.
std::vector<Job> single_modules();

}  // namespace muster::parallel::jobs
