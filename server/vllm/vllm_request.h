#ifndef RECURVE_SERVER_VLLM_VLLM_REQUEST_H_
#define RECURVE_SERVER_VLLM_VLLM_REQUEST_H_

#include "absl/status/statusor.h"
#include "engine/serving/request.h"
#include "server/requests/convert.h"
#include "vllm/grpc/engine.pb.h"

namespace recurve {

// What vllm.grpc.engine.GenerateRequest calls its fields.
FieldNames VllmFieldNames();

// A request as one of the server's own. InvalidArgument, naming the field, for
// what the server does not have; ranges are the engine's to check. The proto
// says which default each field has.
absl::StatusOr<RequestInput> FromVllm(
    const ::vllm::grpc::engine::GenerateRequest& request,
    const RequestContext& context);

// Bounds an answer in one piece, which is held until it is whole, as over HTTP:
// at most kMaxWholeTokens in all continuations, where a log-probability counts
// as kLogprobTokens (convert.h).
// InvalidArgument if `input`, for `samples` continuations, asks for more;
// without a number of its own it gets no more: `context` is to have the default
// then.
absl::Status BoundWholeAnswer(const RequestInput& input, int samples,
                              RequestContext* context);

// The same for the log-probabilities of a prompt, which `prompt_name` named.
absl::Status BoundWholePrompt(const Command& command,
                              absl::string_view prompt_name);

// SamplingParams::n, from 1 to kMaxSamples, or InvalidArgument.
absl::StatusOr<int> SamplesOf(
    const ::vllm::grpc::engine::GenerateRequest& request);

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_VLLM_REQUEST_H_
