#pragma once

#include "format/convert.h"
#include "format/stored_content.h"

/// Checkpoint folders as content of values, and what of it goes to other tools.
namespace muster::format {

/// Opens a checkpoint folder: see open_content.
StoredContent open_checkpoint(const std::filesystem::path& folder);

/// Compares every byte of the folder's tensors with its checksums.
/// Requires: open_checkpoint() has accepted the folder. Throws: CheckpointError MU213, MU200.
void check_checkpoint_values(const std::filesystem::path& folder);

/// Adds a tensor of a safetensors file, with its own storage.
/// Throws: CheckpointError MU207.
PythonValue add_tensor(StoredContent& stored, const std::shared_ptr<const InputFile>& file, const TensorEntry& entry);

/// Whether the value is a map of named tensors and nothing else, as state_dict() returns it.
bool is_state_dict(const PythonValue& value);

/// The part of a checkpoint folder that is exchanged with other tools. For a torch file: the models' weights and the
/// optimizers' states in Python's layout, under "model" and "optimizer" (several: "model_0", "model_1", ...), or under
/// the names they were saved with. For safetensors: the weights of model number `model`, or of the only model if that
/// is negative. Tensors that are sharded over ranks are assembled; docs/formats/job_state.md describes how they are
/// marked.
/// Throws: CheckpointError MU229 if there is none, or several and none was chosen; MU213 for a mark without its tensor.
PythonValue exchanged_value(StoredContent& stored, WeightForm form, int model);

// Why: docs/decisions/0109-lightnings-files.md.

/// The contents of a checkpoint of Lightning's Trainer, without the weights.
struct LightningParts {
  std::int64_t batches = 0;           ///< number of batches of all epochs
  std::int64_t epochs = 0;            ///< number of completed epochs
  std::int64_t global_step = 0;       ///< number of updates of all optimizers
  bool has_optimizers = false;        ///< true if training can be resumed from `optimizers`
  PythonValue hyper_parameters = {};  ///< None or a map
  bool in_epoch = false;              ///< true if another epoch has begun
  std::vector<PythonValue> optimizers = {};
};

/// Whether a Trainer wrote this checkpoint folder.
bool is_trainers(const StoredContent& stored);
/// The parts of a checkpoint folder; zeros and empty values for anything else. The states of optimizers are left out if
/// there are schedulers too, since the states of those have no counterpart in Python.
LightningParts lightning_parts(StoredContent& stored);
/// The complete contents of such a file, as docs/formats/lightning.md describes them.
PythonValue lightning_value(PythonValue weights, LightningParts parts);

}  // namespace muster::format
