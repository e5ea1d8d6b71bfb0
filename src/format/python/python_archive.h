#pragma once

#include "format/python_file.h"

namespace muster::format {

/// The contents of an archive of LibTorch's torch::save in the form that Python would have written: a module's tensors
/// by full name, an optimizer's state as its state_dict. The optimizer's steps stay as they are in the file.
PythonValue value_of_archive(PythonValue root);

}  // namespace muster::format
