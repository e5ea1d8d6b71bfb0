#pragma once

/// The DataLoader with every kind of data: datasets, streams, ready-made batches, and sample orders of one's own.
/// accelerator.h and fabric.h bring the DataLoader for datasets.
#include "muster/data/batches.h"
#include "muster/data/data_loader.h"
#include "muster/data/dataset_error.h"
#include "muster/data/sampler.h"
#include "muster/data/shard_spec.h"
#include "muster/data/stream.h"
