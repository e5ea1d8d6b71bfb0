#pragma once

/// The DataLoader with every kind of data: datasets, streams, ready-made batches, and sample orders of one's own.
/// accelerator.h and fabric.h bring the DataLoader for datasets.
#include "muster/data/detail/batches.h"
#include "muster/data/detail/data_loader.h"
#include "muster/data/detail/dataset_error.h"
#include "muster/data/detail/shard_spec.h"
#include "muster/data/sampler.h"
#include "muster/data/stream.h"
