# Finds LibTorch and defines LibTorch::LibTorch, for the CPU and the CUDA build alike.
# find_package(Torch) of a CUDA wheel demands a CUDA toolkit at configure time and hard-wires paths, so the targets are our own.
# Looked at, in order: LibTorch_ROOT, what find_package(Torch) found, CMAKE_PREFIX_PATH (a torch folder, its share/cmake, or a libtorch archive), the .venv of this source tree.
set(_roots ${LibTorch_ROOT} $ENV{LibTorch_ROOT})
if(Torch_DIR)
  list(APPEND _roots ${Torch_DIR}/../../..)
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _roots ${_prefix} ${_prefix}/torch ${_prefix}/../.. ${_prefix}/../../..)
endforeach()
file(GLOB _venv "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
list(APPEND _roots ${_venv})

find_path(LibTorch_INCLUDE_DIR torch/headeronly/version.h HINTS ${_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(LibTorch_INCLUDE_DIR torch/headeronly/version.h)
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_ROOT_DIR "${LibTorch_INCLUDE_DIR}" DIRECTORY)
  set(LibTorch_LIBRARY_DIR "${LibTorch_ROOT_DIR}/lib")
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_lines}")
endif()

# One that the user names and that is not taken is said: it is too old to be known, or another one was found before it.
if(LibTorch_INCLUDE_DIR AND NOT LibTorch_FIND_QUIETLY)
  file(REAL_PATH "${LibTorch_ROOT_DIR}" _taken)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
    foreach(_root IN ITEMS ${_prefix} ${_prefix}/torch ${_prefix}/../.. ${_prefix}/../../..)
      file(REAL_PATH "${_root}" _named)
      if(_named STREQUAL _taken OR NOT EXISTS "${_named}/include/torch/csrc/api/include/torch/version.h")
        continue()
      endif()
      set(_reason "that one comes first: it is in LibTorch_ROOT, Torch_DIR, an earlier place of CMAKE_PREFIX_PATH or this folder's cache; pass -DLibTorch_INCLUDE_DIR=${_named}/include to take this one")
      if(NOT EXISTS "${_named}/include/torch/headeronly/version.h")
        set(_reason "it is older than LibTorch 2.11")
      endif()
      message(WARNING "LibTorch in ${_named}, which CMAKE_PREFIX_PATH names, is not taken, but that in ${_taken}: ${_reason}")
    endforeach()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_LIBRARY_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "LibTorch 2.11 or later is needed: run 'make setup' (pip installs it into .venv), or pass -DCMAKE_PREFIX_PATH=/path/to/torch")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  find_package(Threads REQUIRED)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_compile_definitions(LibTorch::LibTorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_directories(LibTorch::LibTorch INTERFACE "${LibTorch_LIBRARY_DIR}")
  target_link_options(LibTorch::LibTorch INTERFACE "-Wl,-rpath,${LibTorch_LIBRARY_DIR}")
  set(_libs torch_cpu c10)
  set(LibTorch_CUDA OFF)
  if(EXISTS "${LibTorch_LIBRARY_DIR}/libtorch_cuda.so")
    # Nothing refers to libtorch_cuda by symbol, so the linker must be told to keep it.
    list(PREPEND _libs -Wl,--no-as-needed torch_cuda c10_cuda)
    set(LibTorch_CUDA ON)
    # The CUDA libraries of the pip wheels lie in sibling folders, which only libtorch_cuda's own rpath names.
    target_link_options(LibTorch::LibTorch INTERFACE "-Wl,--allow-shlib-undefined")
  endif()
  target_link_libraries(LibTorch::LibTorch INTERFACE ${_libs} -Wl,--as-needed Threads::Threads)
endif()
