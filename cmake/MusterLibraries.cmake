# What a project links: libmuster_launch (starts ranks; no Torch) and libmuster (every other room), made of the objects of the rooms, so that nothing is
# compiled twice. Static, or shared with BUILD_SHARED_LIBS; beside the tests both are built, to be tested.

# muster_library(NAME STATIC|SHARED EXPORTED rooms...): lib<NAME> of these rooms. A shared one exports the names of cmake/<EXPORTED>.
function(muster_library name kind exported)
  set(objects)
  set(libraries)
  foreach(room IN LISTS ARGN)
    get_property(room_objects GLOBAL PROPERTY MUSTER_OBJECTS_${room})
    get_property(room_libraries GLOBAL PROPERTY MUSTER_LIBRARIES_${room})
    list(APPEND objects ${room_objects})
    list(APPEND libraries ${room_libraries})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  add_library(${name} ${kind} ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  if(kind STREQUAL SHARED)
    set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH $ORIGIN
      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/${exported})
    target_link_options(${name} PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/${exported}")
    if(NOT MUSTER_SANITIZE)
      target_link_options(${name} PRIVATE LINKER:--no-undefined)
    endif()
  endif()
  target_link_libraries(${name} PUBLIC Threads::Threads PRIVATE ${libraries})
endfunction()

# muster_libraries(STATIC|SHARED PREFIX): the targets <PREFIX>_launch, <PREFIX>_muster, <PREFIX>_testing and <PREFIX>_sim.
function(muster_libraries kind prefix)
  set(launch_rooms base cluster launcher)
  set(other_rooms options ${MUSTER_ALL_ROOMS})
  list(REMOVE_ITEM other_rooms ${launch_rooms})
  muster_library(${prefix}_launch ${kind} exported_names_launch.map ${launch_rooms})
  muster_library(${prefix}_muster ${kind} exported_names.map ${other_rooms})
  target_link_libraries(${prefix}_launch INTERFACE muster_fork_before_main)
  target_link_libraries(${prefix}_muster PUBLIC ${prefix}_launch LibTorch::LibTorch)
  foreach(tests testing sim)
    add_library(${prefix}_${tests} INTERFACE)
    target_link_libraries(${prefix}_${tests} INTERFACE ${prefix}_muster)
  endforeach()
  foreach(library launch muster testing sim)
    set_target_properties(${prefix}_${library} PROPERTIES EXPORT_NAME ${library})
  endforeach()
  set_target_properties(${prefix}_launch PROPERTIES OUTPUT_NAME muster_launch)
  set_target_properties(${prefix}_muster PROPERTIES OUTPUT_NAME muster)
  if(kind STREQUAL STATIC AND TARGET muster_mpi)  # a program finds the object by its run path
    add_dependencies(${prefix}_muster muster_mpi)
    target_link_options(${prefix}_muster INTERFACE $<BUILD_INTERFACE:LINKER:-rpath,${PROJECT_BINARY_DIR}/lib>
      $<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>)
  endif()
endfunction()
