#ifndef RECURVE_SERVER_VARIABLES_H_
#define RECURVE_SERVER_VARIABLES_H_

#include <string>
#include <vector>

namespace recurve {

// A line for each variable of `environment` ("NAME=VALUE", null at the end)
// that was probably meant for the server and is not one of `known`, the
// variables of its flags: a misspelt one would silently have no effect. Ignores
// those of other programs and of tests, and those that Kubernetes and Docker
// set for a service called recurve.
std::vector<std::string> UnknownVariables(const std::vector<std::string>& known,
                                          const char* const* environment);

}  // namespace recurve

#endif  // RECURVE_SERVER_VARIABLES_H_
