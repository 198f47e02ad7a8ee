#include "server/inference_service.h"

#include <memory>

#include "server/decode_call.h"
#include "server/generate_call.h"

namespace recurve {

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<GenerateCall>(environment_, context);
  // gRPC keeps the buffer, which is the call's alone, until the call ends;
  // taking the bytes out frees them while the request waits.
  call->Begin(call, const_cast<grpc::ByteBuffer*>(request));
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
InferenceService::Decode(grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<DecodeCall>(environment_, context);
  call->Begin(call);
  return call.get();
}

}  // namespace recurve
