#include "server/page/page.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace recurve {
namespace {

// Scripts, styles and calls of this server only; nothing inline, no form, no
// frame around it.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'";

const PageFile* FindPageFile(absl::string_view path) {
  const auto files = PageFiles();
  const auto found = absl::c_find_if(
      files, [&](const PageFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

bool IsPagePath(absl::string_view path) {
  return FindPageFile(path) != nullptr;
}

HttpResponse PageAnswer(absl::string_view path) {
  const PageFile& file = *FindPageFile(path);
  HttpResponse response;
  response.content_type = std::string(file.content_type);
  response.body = std::string(file.content);
  response.headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

bool IsLocalHost(absl::string_view host) {
  if (host.empty()) return true;
  if (host[0] == '[') return true;  // an IPv6 address: names have no brackets
  host = host.substr(0, host.find(':'));
  if (absl::EqualsIgnoreCase(host, "localhost") ||
      absl::EndsWithIgnoreCase(host, ".localhost")) {
    return true;
  }
  // Browsers take a name whose last label is a number as an IPv4 address.
  const absl::string_view last = host.substr(host.rfind('.') + 1);
  return !last.empty() && absl::c_all_of(last, absl::ascii_isdigit);
}

}  // namespace recurve
