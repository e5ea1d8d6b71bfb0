#pragma once

/// The version of these headers. CMake reads it here.
#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0
#define MUSTER_VERSION "0.1.0"
