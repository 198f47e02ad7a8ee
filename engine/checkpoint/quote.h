#ifndef RECURVE_ENGINE_CHECKPOINT_QUOTE_H_
#define RECURVE_ENGINE_CHECKPOINT_QUOTE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// `text` in single quotes, safe for an error message: printable ASCII, the rest
// escaped, cut after 80 bytes. A name in a hostile file may hold control
// characters or be a hundred megabytes long.
std::string Quote(absl::string_view text);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_QUOTE_H_
