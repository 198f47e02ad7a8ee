#include "server/grpc/reflection_service.h"

#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/quote.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/grpc/proto_message.h"

namespace recurve {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::FileDescriptorResponse;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

// Names are short, and an answer repeats its request.
constexpr size_t kMaxRequestBytes = 4 << 10;

void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* seen,
             FileDescriptorResponse* response) {
  if (!seen->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AddFile(file->dependency(i), seen, response);
  }
}

void SetNotFound(const std::string& what, ServerReflectionResponse* response) {
  auto& error = *response->mutable_error_response();
  error.set_error_code(static_cast<int>(absl::StatusCode::kNotFound));
  error.set_error_message(
      absl::StrCat("this server has nothing named ", Quote(what)));
}

ServerReflectionResponse Answer(const std::vector<std::string>& services,
                                const ServerReflectionRequest& request) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto set_file = [&](const FileDescriptor* file,
                            const std::string& what) {
    if (file == nullptr) return SetNotFound(what, &response);
    std::set<const FileDescriptor*> seen;
    AddFile(file, &seen, response.mutable_file_descriptor_response());
  };
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      set_file(pool.FindFileByName(request.file_by_filename()),
               request.file_by_filename());
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      set_file(pool.FindFileContainingSymbol(request.file_containing_symbol()),
               request.file_containing_symbol());
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(
            service);
      }
      break;
    // proto3 has no extensions.
    case ServerReflectionRequest::kFileContainingExtension:
      SetNotFound(request.file_containing_extension().containing_type(),
                  &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetNotFound(request.all_extension_numbers_of_type(), &response);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET: {
      auto& error = *response.mutable_error_response();
      error.set_error_code(
          static_cast<int>(absl::StatusCode::kInvalidArgument));
      error.set_error_message("message_request is not set");
      break;
    }
  }
  return response;
}

// Answers one request after the other.
class ReflectionCall : public RpcListener {
 public:
  ReflectionCall(const std::vector<std::string>& services,
                 std::shared_ptr<RpcStream> stream)
      : services_(services), stream_(std::move(stream)) {}

  void OnMessage(std::string message) override {
    if (message.size() > kMaxRequestBytes) {
      return stream_->Finish(
          absl::InvalidArgumentError(
              absl::StrCat("the request has ", message.size(),
                           " bytes; expected at most ", kMaxRequestBytes)),
          {});
    }
    ServerReflectionRequest request;
    if (!ParseMessage(message, &request)) {
      return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage), {});
    }
    stream_->Write(Answer(services_, request).SerializeAsString());
  }
  void OnHalfClose() override { stream_->Finish(absl::OkStatus(), {}); }
  void OnWritten() override { stream_->Read(kRequestTimeout); }
  void OnDone(const absl::Status&) override {}

 private:
  const std::vector<std::string> services_;
  const std::shared_ptr<RpcStream> stream_;
};

}  // namespace

void AddReflection(const std::vector<std::string>& services,
                   RpcMethods* methods) {
  const RpcMethod method =
      [services](
          const RpcHead&,
          std::shared_ptr<RpcStream> stream) -> std::shared_ptr<RpcListener> {
    RpcStream& reading = *stream;
    auto call = std::make_shared<ReflectionCall>(services, std::move(stream));
    reading.Read(kRequestTimeout);
    return call;
  };
  for (const char* version : {"v1", "v1alpha"}) {
    (*methods)[absl::StrCat("/grpc.reflection.", version,
                            ".ServerReflection/ServerReflectionInfo")] = method;
  }
}

}  // namespace recurve
