#include "client/lib/no_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace recurve {
namespace {

constexpr int kIpv4Begin = 96;  // bits before a mapped IPv4 address
constexpr int kAddressBits = 128;

// IPv4 addresses in IPv6-mapped form, so that all can be compared.
using Address = std::array<uint8_t, 16>;

Address Mapped(const in_addr& four) {
  Address address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  std::memcpy(&address[12], &four, sizeof(four));
  return address;
}

absl::string_view WithoutBrackets(absl::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

std::optional<Address> ParseAddress(absl::string_view text) {
  // A scope ("fe80::1%eth0") is not part of the address.
  const std::string host(
      WithoutBrackets(text).substr(0, WithoutBrackets(text).find('%')));
  Address address;
  if (inet_pton(AF_INET6, host.c_str(), address.data()) == 1) return address;
  // Resolvers also accept its short forms ("127.1").
  in_addr four;
  if (!host.empty() && inet_aton(host.c_str(), &four) != 0) return Mapped(four);
  return std::nullopt;
}

bool InNetwork(const Address& address, const Address& network, int bits) {
  const int bytes = bits / 8;
  if (std::memcmp(address.data(), network.data(), bytes) != 0) return false;
  const int rest = bits % 8;
  return rest == 0 || ((address[bytes] ^ network[bytes]) >> (8 - rest)) == 0;
}

bool IsIpv4(const Address& address) {
  return InNetwork(address, Mapped({0}), kIpv4Begin);
}

// Lower case without the final dot, neither of which changes a name.
std::string Name(absl::string_view host) {
  std::string name(absl::StripSuffix(host, "."));
  for (char& c : name) c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return name;
}

// Whether `host` is `domain` or in it.
bool InDomain(absl::string_view host, absl::string_view domain) {
  return absl::ConsumeSuffix(&host, domain) &&
         (host.empty() || host.back() == '.');
}

// Takes ":PORT" off the entry; false if it is another port than `port`.
bool ConsumePort(absl::string_view* entry, int port) {
  const size_t colon = entry->rfind(':');
  if (colon == absl::string_view::npos || ParseAddress(*entry)) return true;
  int wanted = 0;
  if (!absl::SimpleAtoi(entry->substr(colon + 1), &wanted)) return true;
  *entry = entry->substr(0, colon);
  return wanted == port;
}

bool MatchesEntry(absl::string_view entry, absl::string_view host, int port) {
  if (entry == "*") return true;
  const std::optional<Address> address = ParseAddress(host);
  const size_t slash = entry.find('/');
  if (slash != absl::string_view::npos) {
    const auto network = ParseAddress(entry.substr(0, slash));
    int bits = 0;
    if (!address || !network ||
        !absl::SimpleAtoi(entry.substr(slash + 1), &bits) || bits < 0) {
      return false;
    }
    const bool four = entry.find(':') == absl::string_view::npos;
    if (four != IsIpv4(*address)) return false;
    if (four) bits += kIpv4Begin;
    return bits <= kAddressBits && InNetwork(*address, *network, bits);
  }
  if (!ConsumePort(&entry, port)) return false;
  if (address) return ParseAddress(entry) == address;
  absl::ConsumePrefix(&entry, "*");
  absl::ConsumePrefix(&entry, ".");
  return !entry.empty() && InDomain(Name(host), Name(entry));
}

}  // namespace

bool IsThisMachine(absl::string_view host) {
  if (const std::optional<Address> address = ParseAddress(host)) {
    const Address loopback4 = Mapped({htonl(INADDR_LOOPBACK)});
    return InNetwork(*address, loopback4, kIpv4Begin + 8) ||
           *address == Mapped({htonl(INADDR_ANY)}) ||
           *address == ParseAddress("::1") || *address == ParseAddress("::");
  }
  return InDomain(Name(host), "localhost");
}

bool MatchesNoProxy(absl::string_view list, absl::string_view host, int port) {
  for (const absl::string_view entry :
       absl::StrSplit(list, absl::ByAnyChar(", \t"), absl::SkipEmpty())) {
    if (MatchesEntry(entry, host, port)) return true;
  }
  return false;
}

void SetProxyUse(absl::string_view server, grpc::ChannelArguments* arguments) {
  const size_t colon = server.rfind(':');
  const absl::string_view host = server.substr(0, colon);
  int port = 0;
  if (colon != absl::string_view::npos) {
    (void)absl::SimpleAtoi(server.substr(colon + 1), &port);
  }
  bool direct = IsThisMachine(host);
  for (const char* name : {"no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
    const char* list = std::getenv(name);
    if (list == nullptr || *list == '\0') continue;
    direct = direct || MatchesNoProxy(list, host, port);
    break;
  }
  if (direct) arguments->SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

}  // namespace recurve
