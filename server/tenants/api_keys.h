#ifndef RECURVE_SERVER_TENANTS_API_KEYS_H_
#define RECURVE_SERVER_TENANTS_API_KEYS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

using KeyDigest = std::array<uint8_t, 32>;  // SHA-256

KeyDigest DigestOfKey(absl::string_view key);

// The quotas of one tenant.
struct TenantLimits {
  std::optional<int64_t> max_streams;
  std::optional<int64_t> max_pages;  // of kPageTokens tokens
  struct Rate {
    int64_t tokens_per_second;
    int64_t burst;
  };
  std::optional<Rate> rate;
  std::optional<int64_t> max_state_bytes;
  int64_t weight = 1;        // share of steps, memory and places
  int32_t max_priority = 0;  // that its requests may use
};

// One line of a keys file.
struct TenantEntry {
  std::string name;
  std::vector<KeyDigest> keys;  // at least one
  TenantLimits limits;
  bool admin = false;
};

// Parses a keys file (described in docs/cli.md). InvalidArgument names the
// line, the tenant, the field, the value and what is expected; a key, a digest
// or a word that could be one is never part of the message.
absl::StatusOr<std::vector<TenantEntry>> ParseApiKeys(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_SERVER_TENANTS_API_KEYS_H_
