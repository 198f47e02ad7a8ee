#include "client/loadgen/bench_flag_errors.h"

#include "absl/strings/str_cat.h"

namespace recurve {

absl::Status NameFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

absl::Status RefuseFlag(absl::string_view flag, absl::string_view reason) {
  return NameFlag(flag, absl::InvalidArgumentError(reason));
}

absl::StatusOr<LengthDistribution> ParseLengthsFlag(absl::string_view flag,
                                                    absl::string_view text) {
  auto lengths = LengthDistribution::Parse(text);
  if (!lengths.ok()) return NameFlag(flag, lengths.status());
  return lengths;
}

}  // namespace recurve
