#ifndef RECURVE_BASE_OPEN_FILES_H_
#define RECURVE_BASE_OPEN_FILES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Whether the process may open `count` files more, which `what` needs
// ("recurve-server"). ResourceExhausted names the limit. For libraries that end
// the process where the system gives them none.
absl::Status CheckFiles(absl::string_view what, int count);

}  // namespace recurve

#endif  // RECURVE_BASE_OPEN_FILES_H_
