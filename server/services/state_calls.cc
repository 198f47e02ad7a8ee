#include "server/services/state_calls.h"

#include <utility>

#include "base/status_macros.h"
#include "server/grpc/proto_message.h"

namespace recurve {

void ExportCall::OnMessage(std::string message) {
  v1::ExportStateRequest request;
  if (!ParseMessage(message, &request)) {
    return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage), {});
  }
  auto opened = open_(request);
  if (!opened.ok()) return stream_->Finish(opened.status(), {});
  export_ = *std::move(opened);
  stream_->Accept();
  WriteNext();
}

void ExportCall::OnHalfClose() {
  stream_->Finish(absl::InvalidArgumentError("the request is missing"), {});
}

void ExportCall::WriteNext() {
  if (export_ == nullptr) return;  // the call is over
  if (export_->writer().done()) {
    export_.reset();
    return stream_->Finish(absl::OkStatus(), {});
  }
  v1::ExportStateResponse response;
  response.set_data(export_->writer().Next());
  stream_->Write(response.SerializeAsString());
}

void ImportCall::Read() { stream_->Read(kRequestTimeout); }

void ImportCall::OnMessage(std::string message) {
  v1::ImportStateRequest request;
  if (!ParseMessage(message, &request)) {
    return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage), {});
  }
  if (absl::Status status = Take(request); !status.ok()) {
    return stream_->Finish(std::move(status), {});
  }
  if (!import_->wants_memory()) return Read();
  // The call lives until the memory is there, whatever its client does.
  import_->TakeMemory([self = shared_from_this()](absl::Status status) {
    if (!status.ok()) return self->stream_->Finish(std::move(status), {});
    self->stream_->Accept();
    self->Read();
  });
}

absl::Status ImportCall::Take(const v1::ImportStateRequest& request) {
  const bool first = !std::exchange(begun_, true);
  switch (request.part_case()) {
    case v1::ImportStateRequest::kOptions:
      if (!first) {
        return absl::InvalidArgumentError(
            "options is set in a later message; only the first one sets it");
      }
      options_ = request.options();
      return check_(options_);
    case v1::ImportStateRequest::kData:
      return import_->Append(request.data());
    case v1::ImportStateRequest::PART_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "part is not set; expected options, first, or data");
}

void ImportCall::OnHalfClose() {
  absl::StatusOr<SequenceStatePtr> state = import_->Finish();
  if (!state.ok()) return stream_->Finish(state.status(), {});
  close_(*std::move(state), options_, import_->header(),
         [stream = stream_](absl::StatusOr<v1::StateInfo> info) {
           if (info.ok()) stream->Write(info->SerializeAsString());
           stream->Finish(info.status(), {});
         });
}

}  // namespace recurve
