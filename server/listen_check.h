#ifndef RECURVE_SERVER_LISTEN_CHECK_H_
#define RECURVE_SERVER_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Whether `port` of `host` can be listened on now, 0 being any free one:
// Unavailable, with `what` ("gRPC") and the reason, if not. For a word in good
// time: another process may take the port before it is listened on.
absl::Status CheckCanListen(absl::string_view what, const std::string& host,
                            int port);

}  // namespace recurve

#endif  // RECURVE_SERVER_LISTEN_CHECK_H_
