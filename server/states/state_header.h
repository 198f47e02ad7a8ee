#ifndef RECURVE_SERVER_STATES_STATE_HEADER_H_
#define RECURVE_SERVER_STATES_STATE_HEADER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "recurve/v1/state.pb.h"

namespace recurve {

// The head of an exported state: checks of untrusted input, without state.

// Bytes of a serialized header. Tokens take two to six of them each.
inline constexpr int64_t kMaxStateHeaderBytes = int64_t{64} << 20;
// Bytes of a serialized fingerprint.
inline constexpr int64_t kMaxStateFingerprintBytes = 4096;
// No product or sum of sizes overflows 64 bits within these.
inline constexpr int64_t kMaxStateBlocks = int64_t{1} << 28;
inline constexpr int64_t kMaxStateBlockBytes = int64_t{1} << 34;

// InvalidArgument, naming the field, unless the header agrees with itself:
// there is a fingerprint within its limit, each token has a kind, no more
// tokens are computed than there are, logits come only with all of them, and
// blocks are within the limits. Whether a model has these tokens is the owner's
// to check.
absl::Status CheckStateHeader(const v1::StateHeader& header);

// A serialized header, checked. FailedPrecondition if it has a field that this
// build does not know: what the field decides would be lost. Takes at most
// eight times the memory of `bytes`, which has at most kMaxStateHeaderBytes.
absl::StatusOr<v1::StateHeader> ParseStateHeader(absl::string_view bytes);

// FailedPrecondition unless the two are equal; it names the first field that
// differs, and both values.
absl::Status CheckFingerprint(const v1::StateFingerprint& theirs,
                              const v1::StateFingerprint& ours);

}  // namespace recurve

#endif  // RECURVE_SERVER_STATES_STATE_HEADER_H_
