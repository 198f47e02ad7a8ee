#ifndef RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_
#define RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_

#include <chrono>
#include <string>

namespace recurve {

// False when the bytes are no such message, or a string in it is not UTF-8.
template <typename Message>
bool ParseMessage(const std::string& bytes, Message* message) {
  return message->ParseFromString(bytes);
}

inline constexpr char kMalformedMessage[] =
    "the request is no valid message of this method, or a string in it is not "
    "UTF-8";

// A request that is one message must be complete so long after its head.
inline constexpr std::chrono::milliseconds kRequestTimeout{30'000};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_
