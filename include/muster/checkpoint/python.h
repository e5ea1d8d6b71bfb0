#pragma once

#include <filesystem>

#include "muster/checkpoint/options.h"
#include "muster/tree/state.h"

/// Converts files of Python's torch.save to states and back. Only the calling rank reads or writes; no other rank takes
/// part.
/// Thread safety: both functions from any thread, also concurrently. docs/formats/python.md lists what is read and what
/// is refused.
namespace muster {

/// Reads a file of Python's torch.save (of any version) or of LibTorch's torch::save; or a folder with
/// pytorch_model.bin or its index, as if it were one file. Nothing in a file is executed.
/// Dictionaries become named states in their order, integer keys become decimal text; lists, tuples and sets become
/// lists; dtypes and devices become text ("torch.float32", "cuda:0"). All tensors are on the CPU, do not require
/// gradients, and share memory if they did when saved. Names from a LibTorch archive are those that Python would give.
/// Mapped tensors may be written to (the file does not change) and keep the mapping alive. While a file is mapped, it
/// may be replaced but must not be truncated in place.
/// Throws: CheckpointError MU200 (cannot be read), MU205 (files that do not fit their index), MU225 (damaged or
/// hostile), MU226 (holds an object that is not understood; the message names it and its place).
/// Collective: none.
State load_python(const std::filesystem::path& path, const LoadPythonOptions& options = {});

/// Writes a file that torch.load(path, weights_only=True) reads; it replaces an earlier one, and appears complete or
/// not at all.
/// Named states become dictionaries, lists become lists (see the options for tuples), text that is not UTF-8 becomes
/// bytes. Tensors whose memory overlaps are written once and share it in Python again, with views as views; only the
/// part of an allocation that tensors use is written. Tensors on a device are copied to the CPU one at a time; all are
/// written as CPU tensors.
/// Throws: CheckpointError MU202 (cannot be written), MU227 (a tensor that the file cannot hold).
/// Collective: none.
void save_python(const State& state, const std::filesystem::path& path, const SavePythonOptions& options = {});

}  // namespace muster
