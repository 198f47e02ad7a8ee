#ifndef RECURVE_BASE_BYTE_SIZE_H_
#define RECURVE_BASE_BYTE_SIZE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Parses a number with a unit, in powers of 1024 or of 1000: "1500", "512KiB",
// "24GiB", "1.5TiB", "80GB". Without a unit: bytes. "24Gi", as in Kubernetes,
// equals "24GiB". The value must be at least `least` (1 or 0) and less than
// 2^63; a fraction of a byte is dropped. InvalidArgument quotes the text and
// lists what is accepted.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text,
                                      int64_t least = 1);

// "24.0 GiB"; below 1024, "17 bytes".
std::string HumanBytes(int64_t bytes);

// "25769803776 (24.0 GiB)"
std::string ExactBytes(int64_t bytes);

}  // namespace recurve

#endif  // RECURVE_BASE_BYTE_SIZE_H_
