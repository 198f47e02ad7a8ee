#include "server/services/inference_service.h"

#include <memory>
#include <utility>

#include "server/services/decode_call.h"
#include "server/services/generate_call.h"

namespace recurve {
namespace {

// A method that makes a Call for each call.
template <typename Call>
RpcMethod MethodOf(const CallEnvironment& environment) {
  return [&environment](const RpcHead& head, std::shared_ptr<RpcStream> stream)
             -> std::shared_ptr<RpcListener> {
    auto call = std::make_shared<Call>(environment, head, std::move(stream));
    call->Begin();
    return call;
  };
}

}  // namespace

void AddInferenceMethods(const CallEnvironment& environment,
                         RpcMethods* methods) {
  (*methods)["/recurve.v1.Inference/Generate"] =
      MethodOf<GenerateCall>(environment);
  (*methods)["/recurve.v1.Inference/Decode"] =
      MethodOf<DecodeCall>(environment);
}

}  // namespace recurve
