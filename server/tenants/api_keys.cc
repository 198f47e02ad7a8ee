#include "server/tenants/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/serving/request.h"

namespace recurve {
namespace {

// Every call checks every key.
constexpr size_t kMaxKeys = 1024;
constexpr size_t kMaxNameLength = 64;
constexpr int64_t kMaxStreams = 1 << 20;
constexpr int64_t kMaxPages = 1 << 30;
constexpr int64_t kMaxStateBytes = int64_t{1} << 50;
constexpr int64_t kMaxTokensPerSecond = 1'000'000'000;
constexpr int64_t kMaxTokenBurst = 10'000'000'000;
constexpr int64_t kDefaultBurstSeconds = 10;
constexpr int64_t kMaxWeight = 1000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// The name is a metric label and appears in the log.
absl::Status CheckName(absl::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) ||
           c == '_' || c == '-' || c == '.';
  });
  if (plain && name.size() <= kMaxNameLength) return absl::OkStatus();
  return Wrong(absl::StrCat("the tenant's name has ", name.size(),
                            " characters or others than A-Z, a-z, 0-9, '_', "
                            "'-' and '.'; expected 1 to ",
                            kMaxNameLength, " of these"));
}

absl::StatusOr<KeyDigest> ParseDigest(absl::string_view text) {
  const auto nibble = [](char c) {
    return IsDigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  KeyDigest digest;
  bool valid = text.size() == 2 * digest.size();
  for (size_t i = 0; valid && i < digest.size(); ++i) {
    const int high = nibble(text[2 * i]);
    const int low = nibble(text[2 * i + 1]);
    valid = high >= 0 && low >= 0;
    digest[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!valid) {
    return Wrong(absl::StrCat("sha256 has ", text.size(),
                              " characters or others than 0-9a-f; expected 64 "
                              "of these, the SHA-256 of the key"));
  }
  if (digest == DigestOfKey("")) {
    return Wrong("sha256 is that of an empty key; expected that of a key");
  }
  return digest;
}

absl::StatusOr<int64_t> ParseCount(absl::string_view field,
                                   absl::string_view text, int64_t max) {
  int64_t value = 0;
  if (std::all_of(text.begin(), text.end(), IsDigit) &&
      absl::SimpleAtoi(text, &value) && value >= 1 && value <= max) {
    return value;
  }
  return Wrong(
      absl::StrCat(field, " is ", text.substr(0, 32), "; expected 1 to ", max));
}

absl::StatusOr<int32_t> ParsePriority(absl::string_view text) {
  int32_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= -kMaxPriority &&
      value <= kMaxPriority) {
    return value;
  }
  return Wrong(absl::StrCat("max_priority is ", text.substr(0, 32),
                            "; expected ", -kMaxPriority, " to ",
                            kMaxPriority));
}

absl::StatusOr<TenantEntry> ParseEntry(
    absl::string_view name, const std::vector<absl::string_view>& fields) {
  TenantEntry entry;
  entry.name = std::string(name);
  std::optional<int64_t> rate;
  std::optional<int64_t> burst;
  std::set<absl::string_view> seen;
  for (const absl::string_view field : fields) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(field, absl::MaxSplits('=', 1));
    const auto& [key, value] = parts;
    if (key == "sha256") {
      RECURVE_ASSIGN_OR_RETURN(const KeyDigest digest, ParseDigest(value));
      entry.keys.push_back(digest);
      continue;
    }
    if (!seen.insert(key).second) {
      return Wrong("a field other than sha256 is there twice");
    }
    if (key == "max_streams") {
      RECURVE_ASSIGN_OR_RETURN(entry.limits.max_streams,
                               ParseCount(key, value, kMaxStreams));
    } else if (key == "max_pages") {
      RECURVE_ASSIGN_OR_RETURN(entry.limits.max_pages,
                               ParseCount(key, value, kMaxPages));
    } else if (key == "max_state_bytes") {
      RECURVE_ASSIGN_OR_RETURN(entry.limits.max_state_bytes,
                               ParseCount(key, value, kMaxStateBytes));
    } else if (key == "tokens_per_second") {
      RECURVE_ASSIGN_OR_RETURN(rate,
                               ParseCount(key, value, kMaxTokensPerSecond));
    } else if (key == "token_burst") {
      RECURVE_ASSIGN_OR_RETURN(burst, ParseCount(key, value, kMaxTokenBurst));
    } else if (key == "weight") {
      RECURVE_ASSIGN_OR_RETURN(entry.limits.weight,
                               ParseCount(key, value, kMaxWeight));
    } else if (key == "max_priority") {
      RECURVE_ASSIGN_OR_RETURN(entry.limits.max_priority, ParsePriority(value));
    } else if (key == "admin") {
      if (value != "true" && value != "false") {
        return Wrong(absl::StrCat("admin is ", value.substr(0, 32),
                                  "; expected true or false"));
      }
      entry.admin = value == "true";
    } else {
      // Does not quote the text: it may be a key.
      return Wrong(absl::StrCat(
          "a field of ", field.size(),
          " characters is not known; expected sha256=, max_streams=, "
          "max_pages=, max_state_bytes=, tokens_per_second=, token_burst=, "
          "weight=, max_priority= or admin="));
    }
  }
  if (entry.keys.empty()) {
    return Wrong("sha256 is missing; expected the SHA-256 of a key");
  }
  if (burst && !rate) return Wrong("token_burst needs tokens_per_second");
  if (rate) {
    entry.limits.rate = {*rate, burst.value_or(kDefaultBurstSeconds * *rate)};
  }
  return entry;
}

}  // namespace

KeyDigest DigestOfKey(absl::string_view key) {
  KeyDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         digest.data());
  return digest;
}

absl::StatusOr<std::vector<TenantEntry>> ParseApiKeys(absl::string_view text) {
  std::vector<TenantEntry> entries;
  std::set<std::string> names;
  std::set<KeyDigest> keys;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (fields.empty() || fields[0].front() == '#') continue;
    const absl::string_view name = fields[0];
    fields.erase(fields.begin());
    if (const absl::Status status = CheckName(name); !status.ok()) {
      return Wrong(absl::StrCat("line ", number, ": ", status.message()));
    }
    const auto wrong = [&](absl::string_view what) {
      return Wrong(
          absl::StrCat("line ", number, ", tenant ", name, ": ", what));
    };
    absl::StatusOr<TenantEntry> entry = ParseEntry(name, fields);
    if (!entry.ok()) return wrong(entry.status().message());
    if (!names.insert(entry->name).second) {
      return wrong(
          "the tenant is there twice; expected one line, with a sha256= for "
          "each of its keys");
    }
    for (const KeyDigest& key : entry->keys) {
      if (!keys.insert(key).second) {
        return wrong("sha256 is there twice; a key belongs to one tenant");
      }
    }
    if (keys.size() > kMaxKeys) {
      return wrong(absl::StrCat("there are ", keys.size(),
                                " keys so far; expected at most ", kMaxKeys));
    }
    entries.push_back(*std::move(entry));
  }
  if (entries.empty()) return Wrong("there is no tenant; expected one or more");
  return entries;
}

}  // namespace recurve
