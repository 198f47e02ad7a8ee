#ifndef RECURVE_CLIENT_LOADGEN_BENCH_FLAG_ERRORS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_FLAG_ERRORS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/loadgen/bench_lengths.h"

namespace recurve {

// Errors of the flags of `recurve-client bench`: "--flag: reason".

// The same status with the flag before its message; OK stays OK.
absl::Status NameFlag(absl::string_view flag, const absl::Status& status);

// InvalidArgument.
absl::Status RefuseFlag(absl::string_view flag, absl::string_view reason);

// As LengthDistribution::Parse; an error names the flag.
absl::StatusOr<LengthDistribution> ParseLengthsFlag(absl::string_view flag,
                                                    absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_FLAG_ERRORS_H_
