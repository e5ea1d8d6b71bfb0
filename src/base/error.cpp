#include "muster/base/error.h"
