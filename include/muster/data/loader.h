#pragma once

/// The DataLoader for every kind of data: datasets, streams, ready-made batches, and custom samplers. accelerator.h and
/// fabric.h include this header.
#include "muster/data/data_loader.h"
#include "muster/data/dataset.h"
#include "muster/data/sample_split.h"
#include "muster/data/sampler.h"
#include "muster/data/stream.h"
