// gRPC reflection, as tools like grpcurl use it.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/stock_call.h"

namespace recurve {
namespace {

using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;
using testing::UnorderedElementsAre;

class ReflectionTest : public testing::TestWithParam<const char*> {
 protected:
  std::string method() const {
    return absl::StrCat("/grpc.reflection.", GetParam(),
                        ".ServerReflection/ServerReflectionInfo");
  }
  static ServerReflectionResponse Ask(StockCall& call,
                                      const ServerReflectionRequest& request) {
    EXPECT_TRUE(call.Write(request.SerializeAsString()));
    ServerReflectionResponse response;
    const auto bytes = call.Read();
    EXPECT_TRUE(bytes && response.ParseFromString(*bytes));
    return response;
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, ReflectionTest,
                         testing::Values("v1", "v1alpha"),
                         [](const auto& info) { return info.param; });

TEST_P(ReflectionTest, ShowsServicesAndTheirFiles) {
  TestServer server;
  StockCall call(ChannelTo(server.address()), method());
  ServerReflectionRequest request;
  request.set_host("here");
  request.set_list_services("");
  auto response = Ask(call, request);
  EXPECT_EQ(response.valid_host(), "here");
  EXPECT_EQ(response.original_request().SerializeAsString(),
            request.SerializeAsString());
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names,
              UnorderedElementsAre("recurve.v1.Inference", "recurve.v1.Control",
                                   "recurve.v1.State", "grpc.health.v1.Health",
                                   "vllm.grpc.engine.VllmEngine"));

  request.set_file_containing_symbol("recurve.v1.Control");
  response = Ask(call, request);
  std::vector<std::string> files;
  std::set<std::string> imports;
  for (const std::string& bytes :
       response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    files.push_back(file.name());
    imports.insert(file.dependency().begin(), file.dependency().end());
  }
  ASSERT_FALSE(files.empty());
  EXPECT_EQ(files[0], "recurve/v1/control.proto");
  for (const std::string& name : imports) {
    EXPECT_THAT(files, testing::Contains(name));
  }
  // For a method and for a message alike.
  for (const char* symbol :
       {"recurve.v1.Inference.Generate", "recurve.v1.GenerateRequest"}) {
    request.set_file_containing_symbol(symbol);
    google::protobuf::FileDescriptorProto file;
    response = Ask(call, request);
    ASSERT_GE(response.file_descriptor_response().file_descriptor_proto_size(),
              1);
    EXPECT_TRUE(file.ParseFromString(
        response.file_descriptor_response().file_descriptor_proto(0)));
    EXPECT_EQ(file.name(), "recurve/v1/inference.proto");
  }
  request.set_file_by_filename("recurve/v1/inference.proto");
  EXPECT_GE(Ask(call, request)
                .file_descriptor_response()
                .file_descriptor_proto_size(),
            1);
  request.set_file_by_filename("nothing.proto");
  EXPECT_EQ(Ask(call, request).error_response().error_code(), 5);
  request.set_file_containing_symbol("nothing");
  EXPECT_EQ(Ask(call, request).error_response().error_code(), 5);
  EXPECT_EQ(Ask(call, ServerReflectionRequest()).error_response().error_code(),
            3);
  EXPECT_TRUE(call.WritesDone());
  EXPECT_EQ(call.Read(), std::nullopt);
  EXPECT_TRUE(call.Finish().ok());
}

// An answer repeats its request: of a large one there could be as many as there
// are calls.
TEST_P(ReflectionTest, TakesNoLargeRequests) {
  TestServer server;
  StockCall call(ChannelTo(server.address()), method());
  ServerReflectionRequest request;
  request.set_file_containing_symbol(std::string(1 << 20, 'x'));
  EXPECT_TRUE(call.Write(request.SerializeAsString()));
  EXPECT_EQ(call.Read(), std::nullopt);
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace recurve
