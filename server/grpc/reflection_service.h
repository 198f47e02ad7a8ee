#ifndef RECURVE_SERVER_GRPC_REFLECTION_SERVICE_H_
#define RECURVE_SERVER_GRPC_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "server/grpc/rpc.h"

namespace recurve {

// Adds grpc.reflection.v1.ServerReflection, and v1alpha for older tools: they
// describe `services` and their messages to tools such as grpcurl.
void AddReflection(const std::vector<std::string>& services,
                   RpcMethods* methods);

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_REFLECTION_SERVICE_H_
