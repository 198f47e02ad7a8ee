// The calls of RecurveClient that concern states.

#include <utility>

#include "base/status_macros.h"
#include "client/lib/client_call.h"
#include "client/lib/recurve_client.h"

namespace recurve {

absl::StatusOr<v1::StateInfo> RecurveClient::MakeState(
    const v1::DecodeRequest& first, const v1::StateOptions& keep,
    const CallOptions& options) {
  ClientCall call(options, authorization_);
  const auto stream = inference_->Decode(call.context());
  stream->Write(first);  // if the call has ended, Read says so
  v1::SnapshotRequest snapshot;
  *snapshot.mutable_options() = keep;
  bool done = false;
  v1::DecodeResponse response;
  while (!done && stream->Read(&response)) {
    if (response.has_admitted()) {
      snapshot.set_request_id(response.admitted().request_id());
    }
    done = response.done();
  }
  if (!done) {
    RECURVE_RETURN_IF_ERROR(FromGrpcStatus(stream->Finish()));
    return absl::DataLossError("the call ended before its command was done");
  }
  // A canceller serves the first call, which this one depends on.
  absl::StatusOr<v1::StateInfo> info =
      Unary(state_.get(), &v1::State::Stub::Snapshot, snapshot,
            {options.timeout, nullptr}, authorization_);
  stream->WritesDone();
  while (stream->Read(&response)) {
  }
  const absl::Status ended = FromGrpcStatus(stream->Finish());
  RECURVE_RETURN_IF_ERROR(info.status());
  RECURVE_RETURN_IF_ERROR(ended);
  return info;
}

absl::StatusOr<v1::ForkResponse> RecurveClient::ForkState(
    const v1::ForkRequest& request, const CallOptions& options) {
  return Unary(state_.get(), &v1::State::Stub::Fork, request, options,
               authorization_);
}

absl::StatusOr<v1::StateInfo> RecurveClient::GetState(
    absl::string_view state, const CallOptions& options) {
  v1::GetStateRequest request;
  request.set_state(std::string(state));
  return Unary(state_.get(), &v1::State::Stub::Get, request, options,
               authorization_);
}

absl::StatusOr<v1::ListStatesResponse> RecurveClient::ListStates(
    const CallOptions& options) {
  return Unary(state_.get(), &v1::State::Stub::List, v1::ListStatesRequest(),
               options, authorization_);
}

absl::StatusOr<v1::StateInfo> RecurveClient::PinState(
    const v1::PinStateRequest& request, const CallOptions& options) {
  return Unary(state_.get(), &v1::State::Stub::Pin, request, options,
               authorization_);
}

absl::Status RecurveClient::ReleaseState(absl::string_view state,
                                         const CallOptions& options) {
  v1::ReleaseStateRequest request;
  request.set_state(std::string(state));
  return Unary(state_.get(), &v1::State::Stub::Release, request, options,
               authorization_)
      .status();
}

absl::Status RecurveClient::ExportState(
    absl::string_view state,
    absl::FunctionRef<absl::Status(absl::string_view)> on_data,
    const CallOptions& options) {
  ClientCall call(options, authorization_);
  v1::ExportStateRequest request;
  request.set_state(std::string(state));
  const auto reader = state_->Export(call.context(), request);
  absl::Status failure;
  v1::ExportStateResponse piece;
  // What comes after a failure is dropped: gRPC requires the stream to be read
  // to its end.
  while (reader->Read(&piece)) {
    if (!failure.ok()) continue;
    failure = on_data(piece.data());
    if (!failure.ok()) call.context()->TryCancel();
  }
  const absl::Status ended = FromGrpcStatus(reader->Finish());
  return failure.ok() ? ended : failure;
}

absl::StatusOr<v1::StateInfo> RecurveClient::ImportState(
    const v1::StateOptions& keep,
    absl::FunctionRef<absl::StatusOr<std::string>()> next,
    const CallOptions& options) {
  ClientCall call(options, authorization_);
  v1::StateInfo info;
  const auto writer = state_->Import(call.context(), &info);
  v1::ImportStateRequest request;
  *request.mutable_options() = keep;
  absl::Status failure;
  while (writer->Write(request)) {
    absl::StatusOr<std::string> piece = next();
    failure = piece.status();
    if (!piece.ok()) call.context()->TryCancel();
    if (!piece.ok() || piece->empty()) break;
    request.set_data(*std::move(piece));
  }
  writer->WritesDone();
  const absl::Status ended = FromGrpcStatus(writer->Finish());
  RECURVE_RETURN_IF_ERROR(failure);
  RECURVE_RETURN_IF_ERROR(ended);
  return info;
}

absl::StatusOr<v1::StateInfo> RecurveClient::CopyState(
    absl::string_view state, const v1::StateOptions& keep, RecurveClient* to,
    const CallOptions& options) {
  ClientCall call(options, authorization_);
  v1::ExportStateRequest request;
  request.set_state(std::string(state));
  const auto reader = state_->Export(call.context(), request);
  absl::Status exported;
  bool over = false;
  absl::StatusOr<v1::StateInfo> info =
      to->ImportState(keep,
                      [&]() -> absl::StatusOr<std::string> {
                        v1::ExportStateResponse piece;
                        if (reader->Read(&piece))
                          return std::move(*piece.mutable_data());
                        over = true;
                        exported = FromGrpcStatus(reader->Finish());
                        RECURVE_RETURN_IF_ERROR(exported);
                        return std::string();
                      },
                      {options.timeout, nullptr});
  if (!over) {  // the other server has refused it
    call.context()->TryCancel();
    v1::ExportStateResponse rest;
    while (reader->Read(&rest)) {
    }
    (void)reader->Finish();
  }
  return info;
}

}  // namespace recurve
