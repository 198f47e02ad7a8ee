#include "server/grpc/wire.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace recurve {
namespace {

// The beginning of a message, in whole characters, with a note that it is
// truncated. A client may accept no more than 8 KiB of metadata, and a byte
// becomes three.
std::string Cut(absl::string_view message) {
  constexpr size_t kMaxBytes = 2 << 10;
  if (message.size() <= kMaxBytes) return std::string(message);
  size_t size = kMaxBytes;
  while (size > 0 && (static_cast<uint8_t>(message[size]) & 0xc0) == 0x80) {
    --size;
  }
  return absl::StrCat(message.substr(0, size), "... (", message.size(),
                      " bytes)");
}

}  // namespace

std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(
    absl::string_view text) {
  constexpr size_t kMaxDigits = 8;
  if (text.size() < 2 || text.size() > kMaxDigits + 1) return std::nullopt;
  const absl::string_view digits = text.substr(0, text.size() - 1);
  int64_t value = 0;
  if (!absl::c_all_of(digits, [](char c) { return absl::ascii_isdigit(c); }) ||
      !absl::SimpleAtoi(digits, &value)) {
    return std::nullopt;
  }
  switch (text.back()) {
    case 'H':
      // 99,999,999 hours would overflow; 10 years are effectively for ever.
      return std::chrono::hours(std::min<int64_t>(value, 87'600));
    case 'M':
      return std::chrono::minutes(std::min<int64_t>(value, 5'256'000));
    case 'S':
      return std::chrono::seconds(value);
    case 'm':
      return std::chrono::milliseconds(value);
    case 'u':
      return std::chrono::microseconds(value);
    case 'n':
      return std::chrono::nanoseconds(value);
    default:
      return std::nullopt;
  }
}

bool IsGrpcContentType(absl::string_view content_type) {
  absl::string_view rest = content_type;
  if (!absl::StartsWithIgnoreCase(rest, "application/grpc")) return false;
  rest.remove_prefix(absl::string_view("application/grpc").size());
  absl::ConsumePrefix(&rest, "+proto");
  return rest.empty() || rest[0] == ';' || rest[0] == ' ';
}

std::string PercentEncoded(absl::string_view message) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(message.size());
  for (const char c : message) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded.push_back(c);
      continue;
    }
    const auto byte = static_cast<uint8_t>(c);
    encoded.push_back('%');
    encoded.push_back(kHex[byte >> 4]);
    encoded.push_back(kHex[byte & 15]);
  }
  return encoded;
}

RpcMetadata WithResponseHead(RpcMetadata metadata) {
  RpcMetadata all = {{":status", "200"},
                     {"content-type", "application/grpc"},
                     {"grpc-accept-encoding", "identity"}};
  std::move(metadata.begin(), metadata.end(), std::back_inserter(all));
  return all;
}

RpcMetadata StatusTrailers(const absl::Status& status, RpcMetadata trailers) {
  RpcMetadata all;
  all.emplace_back("grpc-status",
                   absl::StrCat(static_cast<int>(status.code())));
  if (!status.message().empty()) {
    all.emplace_back("grpc-message", PercentEncoded(Cut(status.message())));
  }
  std::move(trailers.begin(), trailers.end(), std::back_inserter(all));
  return all;
}

}  // namespace recurve
