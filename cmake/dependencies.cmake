# Everything comes from the distribution and is found by its own CMake config;
# no version is pinned, so newer ones work too.

find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(hwy CONFIG QUIET)
if(NOT hwy_FOUND)
  # Some packages ship no CMake config, only pkg-config.
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
  add_library(hwy::hwy ALIAS PkgConfig::HWY)
endif()
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

if(RECURVE_BUILD_SERVER)
  # Protobuf before 22 ships no CMake config on Debian: CMake's own module
  # finds it. From 22 on, the config is the one that knows about Abseil.
  find_package(Protobuf CONFIG QUIET)
  if(NOT Protobuf_FOUND)
    find_package(Protobuf MODULE REQUIRED)
  endif()
  find_package(gRPC CONFIG REQUIRED)
  find_package(OpenSSL 3.0 REQUIRED)
  pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2>=1.52)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(Boost 1.74 CONFIG REQUIRED)  # Asio and Beast: headers alone
  find_program(RECURVE_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
endif()
if(RECURVE_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(RECURVE_BUILD_BENCHMARKS)
  find_package(benchmark CONFIG REQUIRED)
endif()
