#pragma once

#include "format/convert_options.h"
#include "format/stored_content.h"

namespace muster::format {

/// The part of a checkpoint folder that is exchanged with other tools. For a torch file: the models' weights and the
/// optimizers' states in Python's layout, under "model" and "optimizer" (several: "model_0", "model_1", ...), or under
/// the names they were saved with. For safetensors: the weights of model number `model`, or of the only model if that
/// is negative. Tensors that are sharded over ranks are assembled; docs/formats/job_state.md describes how they are
/// marked.
/// Throws: CheckpointError MU229 if there is none, or several and none was chosen; MU213 for a mark without its tensor.
PythonValue exchanged_value(StoredContent& stored, WeightForm form, int model);

}  // namespace muster::format
