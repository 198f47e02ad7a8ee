#ifndef RECURVE_SERVER_GRPC_WIRE_H_
#define RECURVE_SERVER_GRPC_WIRE_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/grpc/rpc.h"

namespace recurve {

// The headers of gRPC over HTTP/2 (doc/PROTOCOL-HTTP2.md of gRPC). Pure.

// "100m" is 100 ms: up to 8 digits and one of H, M, S, m, u, n. Nothing if the
// text is malformed.
std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(
    absl::string_view text);

// Whether the content type is "application/grpc" or "application/grpc+proto",
// with or without parameters.
bool IsGrpcContentType(absl::string_view content_type);

// A message encoded for the header grpc-message: bytes that are not printable
// ASCII, and '%', become "%XX".
std::string PercentEncoded(absl::string_view message);

// `metadata` after the headers that every response begins with.
RpcMetadata WithResponseHead(RpcMetadata metadata);

// `trailers` after the headers for `status`; a message of more than 2 KiB is
// truncated.
RpcMetadata StatusTrailers(const absl::Status& status, RpcMetadata trailers);

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_WIRE_H_
