#ifndef RECURVE_BASE_OPEN_FILES_H_
#define RECURVE_BASE_OPEN_FILES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

// ResourceExhausted, naming the limit, unless the process may open `count` more
// files, which `what` ("recurve-server") needs. For libraries that end the
// process when they run out of files.
absl::Status CheckFiles(absl::string_view what, int count);

}  // namespace recurve

#endif  // RECURVE_BASE_OPEN_FILES_H_
