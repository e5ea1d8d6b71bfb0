#pragma once  // for other rooms

#include <string>
#include <string_view>

namespace muster::launcher {

/// The flag of `muster run` for a name of torchrun, accelerate launch, fabric run, mpirun or srun ("num_processes":
/// "--devices"), or a remark; "" for an unknown name. Names have underscores and no leading dashes.
std::string spelling_here(std::string_view name);

}  // namespace muster::launcher
