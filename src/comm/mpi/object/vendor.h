#pragma once

#include <string>
#include <string_view>

#include <mpi.h>

namespace muster::comm::mpi {

/// The family of MPI libraries that can run each other's programs, from the text of MPI_Get_library_version: "Open MPI"
/// with its major version, or MPICH and those that keep its binary interface.
inline std::string family_of(std::string_view version) {
  constexpr std::string_view open_mpi = "Open MPI v";
  if (version.starts_with(open_mpi)) return "Open MPI " + std::string(version.substr(open_mpi.size(), 1));
  for (const std::string_view name : {"MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"})
    if (version.find(name) != std::string_view::npos) return "MPICH";
  return std::string(version.substr(0, version.find_first_of(" \n")));
}

inline std::string family_of_header() {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION);
#elif defined(MPICH_VERSION) || defined(MPICH_NAME) || defined(I_MPI_VERSION) || defined(MVAPICH2_VERSION)
  return "MPICH";
#else
  return "";
#endif
}

/// Implements Calls::version_mismatch(). May be called before MPI_Init.
inline std::string difference_from_header() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length)) return "the MPI that was loaded does not tell its version";
  const std::string built = family_of_header(), loaded = family_of(text);
  if (built.empty() || built == loaded) return "";
  const std::string_view line = std::string_view(text).substr(0, std::string_view(text).find_first_of(",\n"));
  return "it was built with " + built + ", but what was loaded is " + std::string(line);
}

}  // namespace muster::comm::mpi
