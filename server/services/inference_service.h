#ifndef RECURVE_SERVER_SERVICES_INFERENCE_SERVICE_H_
#define RECURVE_SERVER_SERVICES_INFERENCE_SERVICE_H_

#include "server/grpc/rpc.h"
#include "server/requests/request_call.h"

namespace recurve {

// Adds the methods of recurve.v1.Inference. `environment` outlives the server
// with these methods and all calls.
void AddInferenceMethods(const CallEnvironment& environment,
                         RpcMethods* methods);

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_INFERENCE_SERVICE_H_
