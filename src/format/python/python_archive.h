#pragma once

#include "format/python_file.h"

namespace muster::format {

/// What an archive of LibTorch's torch::save holds, as Python would have written it: a module's tensors by full name,
/// an optimizer's state as its state_dict. The steps of an optimizer stay as they are in the file.
PythonValue value_of_archive(PythonValue root);

}  // namespace muster::format
