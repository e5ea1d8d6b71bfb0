#pragma once

#include "format/convert_options.h"
#include "format/stored_content.h"

namespace muster::format {

/// What is traded of a checkpoint folder: for a torch file the models' weights and the optimizers'
/// states in Python's layout, under "model" and "optimizer" (several: "model_0", "model_1", ...), or under the names
/// they were saved with; for safetensors the weights of one model, by `model`, or of the only one if that is negative.
/// Tensors that are sharded over ranks are put together; docs/formats/job_state.md says how it is marked.
/// Throws: CheckpointError MU229 if there is none, or several and none was chosen; MU213 for a mark without its tensor.
PythonValue exchanged_value(StoredContent& stored, WeightForm form, int model);

}  // namespace muster::format
