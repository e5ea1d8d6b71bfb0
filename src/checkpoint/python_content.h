#pragma once  // for other rooms

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "muster/checkpoint/options.h"
#include "muster/tree/state.h"

/// What a file of torch.save holds, in two parts: what is understood, and what is not. Whoever reads it decides what of
/// the latter is needed.
namespace muster::checkpoint {

/// A part of a file that is not understood.
struct LeftOut {
  std::string place;   ///< Names and positions joined by "/"; empty for the whole file.
  std::string what;    ///< "an object of 'argparse.Namespace'".
  std::string advice;  ///< What to do in Python.
};

struct PythonContent {
  State value;
  std::vector<LeftOut> left_out = {};
  bool is_archive = false;  ///< Of LibTorch or TorchScript: a module's other attributes stand among its weights.
};

/// Reads as load_python(), and leaves out what is not understood without a word. Throws: CheckpointError MU200, MU205,
/// MU225.
PythonContent read_python(const std::filesystem::path& path, const LoadPythonOptions& options = {});

/// Throws: CheckpointError MU226, which names this part.
[[noreturn]] void refuse(const LeftOut& part, const std::filesystem::path& path, std::string_view more_advice = "");

/// "'args', an object of 'argparse.Namespace', and ...", for a message.
std::string listed(const std::vector<LeftOut>& parts);

}  // namespace muster::checkpoint
