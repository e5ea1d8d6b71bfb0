#pragma once  // for other rooms

#include <filesystem>

#include "muster/checkpoint/options.h"
#include "muster/tree/state.h"

/// The contents of a file of torch.save, in two parts: entries that were understood and entries that were not. The
/// caller decides which of the latter it needs.
namespace muster::checkpoint {

/// A part of a file that was not understood.
struct LeftOut {
  std::string place;   ///< names and positions joined by "/"; empty for the whole file
  std::string what;    ///< description such as "an object of 'argparse.Namespace'"
  std::string advice;  ///< remedy in Python
};

struct PythonContent {
  State value;
  std::vector<LeftOut> left_out = {};
  bool is_archive = false;  ///< of LibTorch or TorchScript: other attributes of modules are among the weights
};

/// Reads as load_python(), and silently leaves out parts that it does not understand. Throws: CheckpointError MU200,
/// MU205, MU225.
PythonContent read_python(const std::filesystem::path& path, const LoadPythonOptions& options = {});

/// Throws: CheckpointError MU226, always, with the name of this part.
[[noreturn]] void refuse(const LeftOut& part, const std::filesystem::path& path, std::string_view more_advice = "");

/// The parts in one text for a message: "'args', an object of 'argparse.Namespace', and ...".
std::string listed(const std::vector<LeftOut>& parts);

}  // namespace muster::checkpoint
