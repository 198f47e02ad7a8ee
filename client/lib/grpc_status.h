#ifndef RECURVE_CLIENT_LIB_GRPC_STATUS_H_
#define RECURVE_CLIENT_LIB_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace recurve {

// The status of a finished call. gRPC and Abseil share the codes; a code
// outside of them, which no correct peer sends, becomes kUnknown.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_GRPC_STATUS_H_
