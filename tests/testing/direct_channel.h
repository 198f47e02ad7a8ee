#ifndef RECURVE_TESTS_TESTING_DIRECT_CHANNEL_H_
#define RECURVE_TESTS_TESTING_DIRECT_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

namespace recurve {

// Of channels to servers of tests: gRPC would ask the proxy that the
// environment names for them.
inline grpc::ChannelArguments DirectArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

inline std::shared_ptr<grpc::Channel> DirectChannel(
    const std::string& address,
    const grpc::ChannelArguments& arguments = DirectArguments()) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_DIRECT_CHANNEL_H_
