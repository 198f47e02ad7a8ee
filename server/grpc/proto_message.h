#ifndef RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_
#define RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_

#include <chrono>
#include <string>

namespace recurve {

// False if the bytes are not such a message, or a string in it is not UTF-8.
template <typename Message>
bool ParseMessage(const std::string& bytes, Message* message) {
  return message->ParseFromString(bytes);
}

inline constexpr char kMalformedMessage[] =
    "the request is no valid message of this method, or a string in it is not "
    "UTF-8";

// Time limit for a unary request, from its head to its complete message.
inline constexpr std::chrono::milliseconds kRequestTimeout{30'000};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_PROTO_MESSAGE_H_
