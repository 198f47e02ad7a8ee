# recurve_library(NAME SRCS ... DEPS ...)
# recurve_binary(NAME SRCS ... DEPS ...)
# recurve_test(NAME SRCS ... DEPS ... [LABELS ...] [TIMEOUT seconds] [OPTIMIZED])
# recurve_bench(NAME SRCS ... DEPS ...)
# recurve_sanitizer_environment(NAME)
#
# Sources and dependencies are listed, never globbed. Libraries are static; a
# .cu source in SRCS needs RECURVE_HAVE_CUDA at the caller.
#
# With RECURVE_UNITY, the C++ sources of a target are compiled eight at a time, because
# most of the time goes to headers. Names in unnamed namespaces are then shared by the
# files of such a batch. Sources that must be compiled by themselves are also listed
# after APART.

function(_recurve_common target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${RECURVE_CXX_FLAGS}>")
  target_compile_definitions(${target} PRIVATE RECURVE_VERSION="${PROJECT_VERSION}")
  if(RECURVE_HAVE_CUDA)
    target_compile_definitions(${target} PRIVATE RECURVE_HAVE_CUDA=1)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${RECURVE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  # Newer versions of CMake would batch kernels, too.
  get_target_property(_apart ${target} SOURCES)
  list(FILTER _apart INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${_apart} ${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(recurve_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;APART" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  _recurve_common(${name} ${ARG_APART})
endfunction()

function(recurve_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;APART" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  _recurve_common(${name} ${ARG_APART})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  # Where `./dev bundle` puts libraries, and CUDA's own; as RPATH, which also
  # holds for what those libraries need.
  set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN/../lib;/usr/local/cuda/lib64")
  target_link_options(${name} PRIVATE "LINKER:--disable-new-dtags")
endfunction()

# What all tests are compiled with: half of a build's time goes to them, most of it to
# the same headers, which are compiled once, and to optimising code that runs once. Those
# that compute much themselves (OPTIMIZED) have -O1.
function(_recurve_test_options target optimized)
  set(_options -O0 -g0)
  set(_headers_of recurve_test_headers)
  if(optimized)
    set(_options -O1 -g0)
    set(_headers_of recurve_optimized_test_headers)
  endif()
  if(RECURVE_SANITIZER)
    list(REMOVE_ITEM _options -g0)  # a report names lines
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${_options}>")
  if(NOT RECURVE_UNITY)  # tools read the sources one by one
    return()
  endif()
  # Compiled headers hold only for the same options, and some libraries ask for this.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-pthread>")
  if(NOT TARGET ${_headers_of})
    set(_source ${PROJECT_BINARY_DIR}/gen/${_headers_of}.cc)
    file(WRITE ${_source}.in "")
    configure_file(${_source}.in ${_source} COPYONLY)
    add_library(${_headers_of} OBJECT ${_source})
    target_link_libraries(${_headers_of} PRIVATE GTest::gmock GTest::gtest)
    _recurve_common(${_headers_of})
    target_compile_options(${_headers_of} PRIVATE ${_options} -pthread)
    set(_headers <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp> <absl/status/statusor.h>
        <absl/strings/str_cat.h> <algorithm> <chrono> <functional> <map> <memory> <optional>
        <string> <thread> <vector>)
    if(RECURVE_BUILD_SERVER)
      list(APPEND _headers <grpcpp/grpcpp.h>)
    endif()
    target_precompile_headers(${_headers_of} PRIVATE ${_headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${_headers_of})
endfunction()

function(recurve_test name)
  cmake_parse_arguments(ARG "OPTIMIZED" "TIMEOUT" "SRCS;DEPS;LABELS;APART" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  _recurve_common(${name} ${ARG_APART})
  _recurve_test_options(${name} ${ARG_OPTIMIZED})
  target_compile_definitions(${name} PRIVATE
    RECURVE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" RECURVE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(RECURVE_SANITIZER)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  recurve_sanitizer_environment(${name})
endfunction()

# For tests not made by recurve_test that run our programs.
function(recurve_sanitizer_environment name)
  # For the simulations, which are three and twenty times slower.
  set(_seeds 0.4)
  if(RECURVE_SANITIZER STREQUAL "thread")
    set(_seeds 0.1)
  endif()
  if(RECURVE_SANITIZER)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp second_deadlock_stack=1 ignore_noninstrumented_modules=1;ASAN_OPTIONS=detect_leaks=1;LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp;UBSAN_OPTIONS=print_stacktrace=1;RECURVE_SIM_SEEDS=${_seeds}")
  endif()
endfunction()

function(recurve_bench name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;APART" ${ARGN})
  recurve_binary(${name} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} APART ${ARG_APART})
endfunction()
