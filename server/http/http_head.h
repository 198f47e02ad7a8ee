#ifndef RECURVE_SERVER_HTTP_HTTP_HEAD_H_
#define RECURVE_SERVER_HTTP_HTTP_HEAD_H_

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/fields.hpp>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/http/http_reply.h"

// The heads of HTTP/1 messages: what Beast accepts and a proxy may read in
// another way, and the text of an answer's head. Pure functions. A `version` is
// 10 or 11.

namespace recurve {

inline absl::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// Whether a header of a head goes on in another line. Beast would join the
// lines. Other parsers do not, and a server that parses a head differently from
// the proxy in front of it can be made to accept a request that the proxy has
// not seen (RFC 9112, 5.2). `bytes` are the next of the head; `*last` is the
// one before them, 0 at the start.
bool Folds(absl::string_view bytes, char* last);

// The error in the framing of a request's body, or nothing. Beast treats a body
// of any coding other than "chunked" as empty, and would parse the body as the
// next request.
std::string BodyProblem(const boost::beast::http::fields& head, int version);

// The same for the Host header, by which proxies may route.
std::string HostProblem(const boost::beast::http::fields& head, int version);

// The path of a target "/path?query" or, as proxies get it, "http://host/path".
absl::string_view PathOf(absl::string_view target);

// The status line and the headers of an answer, and the empty line after them.
// Without a length the body is chunked, or ends with the connection.
std::string HeadOf(const HttpResponse& response, int version, bool keep_alive,
                   std::optional<size_t> length);

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_HEAD_H_
