#ifndef RECURVE_TESTS_TESTING_STATUS_CODES_H_
#define RECURVE_TESTS_TESTING_STATUS_CODES_H_

#include "absl/status/status.h"

namespace recurve {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_STATUS_CODES_H_
