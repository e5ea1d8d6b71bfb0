#pragma once  // for other rooms

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/environment.h"

/// Which cores are near a device, and which of them a rank gets.
namespace muster::device {

/// Numbers of cores, in order.
using Cores = std::vector<int>;

/// Of Linux's lists, such as "0-3,8". Empty for another text.
Cores read_cores(std::string_view list);
std::string core_list(const Cores& cores);

/// The cores that the calling thread may run on.
Cores own_cores();

/// Lets the calling thread, all others of this process that may run where it may, and those that they start run on
/// these cores only. Memory that they are the first to write is then near, too. Returns an empty text, or why the
/// system refused, which changes nothing.
std::string run_on(const Cores& cores);

/// Cores near a device, or why none are chosen.
struct NearCores {
  Cores cores = {};
  std::string reason = {};  ///< empty if there are cores
};

/// The cores of `own` near the device at this PCI address, as the system below `root` describes it. None if the device
/// is as near to all cores, and if a user or a launcher has chosen the cores or OpenMP's places already.
NearCores near_cores(const std::string& pci_address, const Cores& own, const Environment& variables,
                     const std::string& root = "/");

/// What a rank says to the others: the machine that it is on and its near cores, if any.
std::string near_cores_message(const NearCores& near, const std::string& root = "/");

/// The cores of rank `rank`, given the messages of all ranks. Those on one machine with the same cores near their
/// devices share these out, so that no processor is used by two of them. None if these are fewer than the ranks, or if
/// ranks have near cores that are only partly the same.
NearCores share_of_rank(const std::vector<std::string>& messages, size_t rank, const std::string& root = "/");

}  // namespace muster::device
