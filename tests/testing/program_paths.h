#ifndef RECURVE_TESTS_TESTING_PROGRAM_PATHS_H_
#define RECURVE_TESTS_TESTING_PROGRAM_PATHS_H_

// Paths of the programs under test, configurable so that tests also run on
// another machine: RECURVE_TEST_PROGRAMS is a folder of programs,
// RECURVE_DEMO_MODEL the demo model's, RECURVE_TEST_DEVICE the server's
// --device.

#include <cstdlib>
#include <string>

namespace recurve {

inline std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

inline std::string TestProgram(const std::string& name) {
  return FromEnvironment("RECURVE_TEST_PROGRAMS", RECURVE_BINARY_DIR "/bin") +
         "/" + name;
}
inline std::string DemoModelFolder() {
  return FromEnvironment("RECURVE_DEMO_MODEL",
                         RECURVE_SOURCE_DIR "/deploy/models/demo");
}
inline std::string TestDeviceFlag() {
  return FromEnvironment("RECURVE_TEST_DEVICE", "cpu");
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_PROGRAM_PATHS_H_
