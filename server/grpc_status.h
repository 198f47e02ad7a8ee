#ifndef RECURVE_SERVER_GRPC_STATUS_H_
#define RECURVE_SERVER_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace recurve {

// The two share their codes by design; messages travel as they are.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(status.message())};
}

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_STATUS_H_
