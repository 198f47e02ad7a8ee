# Compiler flags shared by every target.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(RECURVE_CCACHE ccache)
if(RECURVE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RECURVE_CCACHE})
  # ccache compares what the preprocessor makes, of nvcc for the host: a change
  # under a condition of the device's alone (__CUDA_ARCH__) would get it the old
  # object. It must compare the files themselves. (The namespace leaves behind what
  # it kept before it did.)
  set(CMAKE_CUDA_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_NAMESPACE=recurve-cuda ${RECURVE_CCACHE})
endif()

# Exactness: a row's arithmetic must not depend on which loop a compiler chose
# to contract into fused multiply-adds. Kernels ask for FMA explicitly.
set(RECURVE_CXX_FLAGS -Wall -Wextra -Wno-sign-compare -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND RECURVE_CXX_FLAGS -Wthread-safety)
endif()
if(RECURVE_WERROR)
  list(APPEND RECURVE_CXX_FLAGS -Werror)
endif()

if(RECURVE_SANITIZER STREQUAL "address")
  # Without the checks of each access that take half of the whole build: what is read
  # or written by way of a null pointer, out of an object's bounds or when it is gone,
  # AddressSanitizer reports as well. Alignment is checked in the fuzz build.
  set(RECURVE_SANITIZER_FLAGS -fsanitize=address,undefined
      -fno-sanitize=null,vptr,alignment,object-size
      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(RECURVE_SANITIZER STREQUAL "thread")
  set(RECURVE_SANITIZER_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(RECURVE_SANITIZER STREQUAL "fuzzer")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "RECURVE_SANITIZER is 'fuzzer', which needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  # Everything is instrumented; only the targets link libFuzzer and its main.
  set(RECURVE_SANITIZER_FLAGS -fsanitize=fuzzer-no-link,address,undefined
      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(NOT RECURVE_SANITIZER STREQUAL "")
  message(FATAL_ERROR "RECURVE_SANITIZER is '${RECURVE_SANITIZER}'; expected empty, address, thread or fuzzer")
endif()
# Under sanitizers, GCC takes values for uninitialized that are not, depending on what
# else is in a file (its manual says so). The other builds warn.
if(RECURVE_SANITIZER_FLAGS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND RECURVE_CXX_FLAGS -Wno-maybe-uninitialized)
endif()
if(RECURVE_SANITIZER_FLAGS)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${RECURVE_SANITIZER_FLAGS}>")
  # Every option in one word, so that CMake does not drop the repeats.
  string(REPLACE ";" " " _sanitizer_link "${RECURVE_SANITIZER_FLAGS}")
  add_link_options("SHELL:${_sanitizer_link}")
endif()
