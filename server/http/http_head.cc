#include "server/http/http_head.h"

#include <boost/beast/http/status.hpp>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/quote.h"

namespace recurve {
namespace {

namespace http = boost::beast::http;

}  // namespace

bool Folds(absl::string_view bytes, char* last) {
  for (const char c : bytes) {
    if (*last == '\n' && (c == ' ' || c == '\t')) return true;
    *last = c;
  }
  return false;
}

std::string BodyProblem(const http::fields& head, int version) {
  // Beast accepts "5, 5" and two equal headers as 5, as RFC 9112 allows. A
  // proxy may interpret them differently.
  const size_t lengths = head.count(http::field::content_length);
  if (lengths > 1) return "there is more than one Content-Length";
  if (lengths == 1) {
    const absl::string_view length = View(head[http::field::content_length]);
    if (!absl::c_all_of(length, absl::ascii_isdigit)) {
      return absl::StrCat("Content-Length is ", Quote(length),
                          "; expected one number");
    }
  }
  const auto [first, last] = head.equal_range(http::field::transfer_encoding);
  if (first == last) return "";
  const absl::string_view coding = View(first->value());
  if (std::next(first) != last) {
    return "there is more than one Transfer-Encoding; expected chunked";
  }
  if (!absl::EqualsIgnoreCase(coding, "chunked")) {
    return absl::StrCat("Transfer-Encoding is ", Quote(coding),
                        "; expected chunked");
  }
  if (version < 11) return "HTTP/1.0 has no Transfer-Encoding";
  return "";
}

std::string HostProblem(const http::fields& head, int version) {
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1) return "there is more than one Host";
  if (hosts == 0 && version >= 11) return "Host is missing";
  return "";
}

absl::string_view PathOf(absl::string_view target) {
  target = target.substr(0, target.find('?'));
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(target, scheme)) continue;
    const size_t path = target.find('/', scheme.size());
    return path == absl::string_view::npos ? "/" : target.substr(path);
  }
  return target;
}

std::string HeadOf(const HttpResponse& response, int version, bool keep_alive,
                   std::optional<size_t> length) {
  std::string head = absl::StrCat(
      "HTTP/1.", version >= 11 ? 1 : 0, " ", response.status, " ",
      View(http::obsolete_reason(static_cast<http::status>(response.status))),
      "\r\nContent-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (length) {
    absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
  } else if (version >= 11) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  if (!keep_alive) {
    absl::StrAppend(&head, "Connection: close\r\n");
  } else if (version < 11) {
    absl::StrAppend(&head, "Connection: keep-alive\r\n");
  }
  return head + "\r\n";
}

}  // namespace recurve
