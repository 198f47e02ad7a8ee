#include "server/transport.h"

#include "grpcpp/resource_quota.h"

namespace recurve {
namespace {

constexpr int kMaxMetadataBytes = 8 << 10;
// A peer that has not been heard of for so long is asked; one that does not
// answer within kKeepaliveTimeout is gone, and its streams are cancelled.
constexpr int kKeepaliveMs = 60'000;
// Who says nothing when it has connected is sent away, as over HTTP.
constexpr int kHandshakeTimeoutMs = 10'000;
// Clients may ask this often themselves. Those that do it more often are sent
// away after two warnings.
constexpr int kMinPingIntervalMs = 10'000;
constexpr int kMaxPingStrikes = 2;

}  // namespace

void LimitTransport(const TransportLimits& limits,
                    grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(limits.max_streams));
  // What waits to be sent is not of it, and is bounded call by call.
  grpc::ResourceQuota quota("recurve");
  quota.Resize(static_cast<size_t>(limits.buffer_bytes));
  builder->SetResourceQuota(quota);
  // gRPC unpacks a message before it looks at the limit of its size: a megabyte
  // may become a thousand, of anybody who can connect.
  for (const grpc_compression_algorithm algorithm :
       {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              static_cast<int>(kKeepaliveTimeout.count()));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              kHandshakeTimeoutMs);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
}

}  // namespace recurve
