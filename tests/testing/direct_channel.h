#ifndef RECURVE_TESTS_TESTING_DIRECT_CHANNEL_H_
#define RECURVE_TESTS_TESTING_DIRECT_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

namespace recurve {

// Arguments of channels to test servers: gRPC would otherwise use the proxy in
// the environment.
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
