#ifndef RECURVE_SERVER_PAGE_PAGE_H_
#define RECURVE_SERVER_PAGE_PAGE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/http/http_reply.h"

namespace recurve {

// The page at "/" (docs/page.md): its files are part of the program.

// One of its files, under its path. The list is made by the build.
struct PageFile {
  absl::string_view path;  // "/", or "/ui/NAME"
  absl::string_view content_type;
  absl::string_view content;
};
absl::Span<const PageFile> PageFiles();

// Whether one of the files is under `path`.
bool IsPagePath(absl::string_view path);

// The file, with the headers that keep a browser from doing anything with the
// page but showing it and asking this server. REQUIRES: IsPagePath(path).
HttpResponse PageAnswer(absl::string_view path);

// Whether the header Host is that of a client on this machine: localhost, or an
// IP address, which no one's name service can point elsewhere. Empty: yes, as
// no browser leaves it out.
bool IsLocalHost(absl::string_view host);

}  // namespace recurve

#endif  // RECURVE_SERVER_PAGE_PAGE_H_
