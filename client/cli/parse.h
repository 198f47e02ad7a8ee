#ifndef RECURVE_CLIENT_CLI_PARSE_H_
#define RECURVE_CLIENT_CLI_PARSE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Parsers of flag values. Errors are InvalidArgument, quote the value and say
// what is accepted; the caller prepends the flag's name. Numbers are decimal
// digits only: no sign, no blanks.

// "1,2,3": at least one token id.
absl::StatusOr<std::vector<uint32_t>> ParseIdList(absl::string_view text);

// "ID:VALUE", where VALUE is a finite number.
absl::StatusOr<std::pair<uint32_t, float>> ParseLogitBias(
    absl::string_view text);

// Both ends belong to the range; 1 <= min <= max.
struct CountRange {
  uint32_t min = 0;
  uint32_t max = 0;
};

// "MIN:MAX", or "N" for N:N.
absl::StatusOr<CountRange> ParseCountRange(absl::string_view text);

// Reads the whole file; "-" is standard input. NotFound, InvalidArgument if it
// has more than `max_bytes`, or Internal if reading fails midway.
absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes = size_t{1} << 30);

// Whether the text is a valid protobuf string: well-formed UTF-8, without
// surrogates and overlong forms.
bool IsProtobufString(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_PARSE_H_
