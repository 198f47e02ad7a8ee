#ifndef RECURVE_SERVER_INFERENCE_SERVICE_H_
#define RECURVE_SERVER_INFERENCE_SERVICE_H_

#include "recurve/v1/inference.grpc.pb.h"
#include "server/stream_call.h"

namespace recurve {

// recurve.v1.Inference on gRPC's callback API, as raw methods (proto_buffer.h
// says why). Each call is an object of its own; this only starts them.
// Thread-safe.
class InferenceService
    : public v1::Inference::WithRawCallbackMethod_Generate<
          v1::Inference::WithRawCallbackMethod_Decode<v1::Inference::Service>> {
 public:
  // `environment` outlives the service and all its calls.
  explicit InferenceService(const CallEnvironment& environment)
      : environment_(environment) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Decode(
      grpc::CallbackServerContext* context) override;

 private:
  const CallEnvironment& environment_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_INFERENCE_SERVICE_H_
