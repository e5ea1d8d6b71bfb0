# muster_room(NAME [TORCH] [DEPENDS rooms...] [LIBRARIES libs...] SOURCES files...)
# One static library per room; a TORCH room compiles with the shared precompiled header. LIBRARIES are for its sources only.
# What libmuster and libmuster_launch are linked from is noted: objects in MUSTER_OBJECTS_<room>, libraries in MUSTER_LIBRARIES_<room>.
function(muster_room name)
  cmake_parse_arguments(ROOM "TORCH" "" "DEPENDS;LIBRARIES;SOURCES" ${ARGN})
  add_library(muster_${name} STATIC ${ROOM_SOURCES})
  target_include_directories(muster_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(muster_${name} PUBLIC cxx_std_20)   # for users, whose projects may say nothing
  list(TRANSFORM ROOM_DEPENDS PREPEND muster_)
  target_link_libraries(muster_${name} PUBLIC ${ROOM_DEPENDS} PRIVATE ${ROOM_LIBRARIES} $<BUILD_INTERFACE:muster_warnings>)
  if(NOT BUILD_SHARED_LIBS)
    add_library(muster::${name} ALIAS muster_${name})
  endif()
  if(ROOM_TORCH)
    target_link_libraries(muster_${name} PUBLIC LibTorch::LibTorch)
    set_target_properties(muster_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${MUSTER_JOIN_AT_ONCE})
    muster_precompile(muster_${name})
  endif()
  set_target_properties(muster_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY MUSTER_ROOMS muster_${name})
  set_property(GLOBAL APPEND PROPERTY MUSTER_OBJECTS_${name} $<TARGET_OBJECTS:muster_${name}>)
  set_property(GLOBAL APPEND PROPERTY MUSTER_LIBRARIES_${name} ${ROOM_LIBRARIES})
endfunction()

# MUSTER_PRECOMPILE is ON, OFF, or the path of a header compiled elsewhere with the same flags.
# Tests and examples are compiled without optimization, which halves their time, and so have a precompiled header of their own: all of torch/torch.h.
function(muster_precompile target)
  if(TARGET muster_precompiled)
    target_precompile_headers(${target} REUSE_FROM muster_precompiled)
  elseif(EXISTS "${MUSTER_PRECOMPILE}")
    target_compile_options(${target} PRIVATE -include ${MUSTER_PRECOMPILE} -Winvalid-pch)
  endif()
endfunction()

function(muster_precompile_test target)
  if(TARGET muster_precompiled_tests)
    target_precompile_headers(${target} REUSE_FROM muster_precompiled_tests)
  elseif(EXISTS "${MUSTER_PRECOMPILE_TESTS}")
    target_compile_options(${target} PRIVATE -include ${MUSTER_PRECOMPILE_TESTS} -Winvalid-pch)
  endif()
endfunction()

# muster_test(NAME [TORCH] [LIBRARIES rooms or libs...] SOURCES files...): one GoogleTest program per room. It fails if its tests leave something behind.
function(muster_test name)
  cmake_parse_arguments(TEST "TORCH" "" "LIBRARIES;SOURCES;LABELS" ${ARGN})
  add_executable(test_${name} ${TEST_SOURCES} ${PROJECT_SOURCE_DIR}/tests/leftovers/leftovers.cpp)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE
    MUSTER_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MUSTER_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_compile_options(test_${name} PRIVATE ${MUSTER_TEST_OPTIONS})
  target_link_libraries(test_${name} PRIVATE ${TEST_LIBRARIES} GTest::gtest_main GTest::gmock muster_warnings)
  if(TEST_TORCH)
    target_link_libraries(test_${name} PRIVATE LibTorch::LibTorch)
    set_target_properties(test_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${MUSTER_JOIN_AT_ONCE})
    muster_precompile_test(test_${name})
  endif()
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS "gtest;${TEST_LABELS}")
endfunction()

# muster_script_test(NAME COMMAND program args... [TIMEOUT seconds] [LABELS ...]): a test that closes with "N passed, N failed, N skipped".
# Exit code 77 says that it was skipped, its last line why. Python files run by ${MUSTER_PYTHON}, which has LibTorch's Python where setup put it.
function(muster_script_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "COMMAND;LABELS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 900)
  endif()
  add_test(NAME ${name} COMMAND ${TEST_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "script;${TEST_LABELS}" SKIP_RETURN_CODE 77)
endfunction()

# muster_joined(NAME [LINKS] SOURCES programs...): one program of several, which with LINKS stands under the name of each in tests/ as well.
function(muster_joined name)
  cmake_parse_arguments(JOINED "LINKS" "" "SOURCES" ${ARGN})
  set(joined ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  set(join ${PROJECT_SOURCE_DIR}/tests/programs/join_programs.py)
  add_custom_command(OUTPUT ${joined} COMMAND ${Python3_EXECUTABLE} ${join} ${joined} ${JOINED_SOURCES} DEPENDS ${join} ${JOINED_SOURCES})
  add_executable(${name} ${joined})
  target_compile_options(${name} PRIVATE ${MUSTER_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE muster::muster muster_warnings)
  muster_precompile_test(${name})
  foreach(source IN LISTS JOINED_SOURCES)
    get_filename_component(link ${source} NAME_WE)
    if(JOINED_LINKS)
      # Hard links: programs that start themselves know their path from /proc/self/exe.
      add_custom_command(TARGET ${name} POST_BUILD COMMAND ln -f $<TARGET_FILE:${name}> ${PROJECT_BINARY_DIR}/tests/${link})
    endif()
  endforeach()
endfunction()
