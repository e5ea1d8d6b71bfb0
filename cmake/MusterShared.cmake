# libmuster_launch (starts ranks; no Torch) and libmuster (every other room), made of the objects of the static rooms, so that nothing is compiled twice.
# BUILD_SHARED_LIBS makes them muster::launch, muster::muster, muster::testing and muster::sim; beside the tests they are built to be tested.

# muster_shared_library(NAME rooms...): lib<NAME> of these rooms.
function(muster_shared_library name)
  set(objects)
  set(libraries)
  foreach(room IN LISTS ARGN)
    get_property(room_objects GLOBAL PROPERTY MUSTER_OBJECTS_${room})
    get_property(room_libraries GLOBAL PROPERTY MUSTER_LIBRARIES_${room})
    list(APPEND objects ${room_objects})
    list(APPEND libraries ${room_libraries})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  add_library(${name} SHARED ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib INSTALL_RPATH $ORIGIN
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exported_symbols.map)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_options(${name} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exported_symbols.map")
  if(NOT MUSTER_SANITIZE)
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  target_link_libraries(${name} PUBLIC Threads::Threads PRIVATE ${libraries})
endfunction()

set(launch_rooms base cluster launcher)
set(other_rooms options ${MUSTER_ALL_ROOMS})
list(REMOVE_ITEM other_rooms ${launch_rooms})
muster_shared_library(muster_launch_shared ${launch_rooms})
muster_shared_library(muster_shared ${other_rooms})
target_link_libraries(muster_launch_shared INTERFACE muster_fork_before_main)
target_link_libraries(muster_shared PUBLIC muster_launch_shared LibTorch::LibTorch)
foreach(tests testing sim)
  add_library(muster_${tests}_shared INTERFACE)
  target_link_libraries(muster_${tests}_shared INTERFACE muster_shared)
  set_target_properties(muster_${tests}_shared PROPERTIES EXPORT_NAME ${tests})
endforeach()
set_target_properties(muster_launch_shared PROPERTIES OUTPUT_NAME muster_launch EXPORT_NAME launch)
set_target_properties(muster_shared PROPERTIES OUTPUT_NAME muster EXPORT_NAME muster)
