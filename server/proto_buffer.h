#ifndef RECURVE_SERVER_PROTO_BUFFER_H_
#define RECURVE_SERVER_PROTO_BUFFER_H_

#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace recurve {

// Messages to and from bytes. The Inference calls are raw methods, so that a
// message that does not parse gets a status of ours (gRPC itself answers
// UNIMPLEMENTED, or takes it for the end of the stream), and so that a request
// need not be kept in memory until its call ends.

// False when the bytes are no such message, or a string in it is not UTF-8.
// Empties `buffer`.
template <typename Message>
bool ParseBuffer(grpc::ByteBuffer* buffer, Message* message) {
  return grpc::SerializationTraits<Message>::Deserialize(buffer, message).ok();
}

template <typename Message>
grpc::ByteBuffer SerializeToBuffer(const Message& message) {
  grpc::ByteBuffer buffer;
  bool own_buffer;
  // Fails only for messages of over 2 GiB; streams send far smaller ones.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &buffer,
                                                      &own_buffer);
  return buffer;
}

inline constexpr char kMalformedMessage[] =
    "the request is no valid message of this method, or a string in it is not "
    "UTF-8";

}  // namespace recurve

#endif  // RECURVE_SERVER_PROTO_BUFFER_H_
