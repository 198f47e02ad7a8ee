// Prepare step of prefill attention: a block of 8 warps takes 8 queries of 4
// heads through norm and position; results go through shared memory, so that
// stores are 128 bytes.
// Shapes: q [T, H, D] float32; queries [H, T, width] 16-bit, in cores of 8
// by 8. Floor: T · H · (4 · D + 2 · width) bytes.
#include "kernels/attention/attention_encode.cuh"
#include "kernels/attention/prefill/attention_prefill.cuh"
#include "kernels/common/dependent_launch.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 256;
constexpr int kQueries = 8;  // of a block: a warp each
constexpr int kHeads = 4;    // likewise, one after the other

template <typename T>
__global__ void __launch_bounds__(kThreads) attention_prefill_prepare_kernel(
    const __grid_constant__ AttentionPrefillArgs args) {
  __shared__ __align__(16) uint4 staged[kHeads][32][kQueries];
  LaunchDependents();
  WaitForPrevious();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    args.Scheduled<AttentionPrefillHeader>(0)->next = 0;
  }
  const AttentionPrefillParams& p = args.p;
  const int per_tile = args.query_tile / kQueries;
  const int slot = static_cast<int>(blockIdx.x) / per_tile;
  if (slot >= args.header().query_tiles) return;
  const AttentionPrefillTile tile =
      args.Scheduled<AttentionPrefillTile>(args.parts.by_slot)[slot];
  const int first_query = static_cast<int>(blockIdx.x) % per_tile * kQueries;
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int heads =
      min(kHeads, static_cast<int>(p.shape.num_heads) - first_head);
  const int dim = static_cast<int>(p.shape.head_dim);
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = tile.token + first_query + warp;
  const bool exists = first_query + warp < tile.queries;
  for (int h = 0; h < heads; ++h) {
    float x[8] = {};
    if (exists) {
      AttentionLoadOctet(
          p.q + token * p.stride + static_cast<int64_t>(first_head + h) * dim,
          dim, args.aligned, x);
      AttentionEncode(p.norm, p.position, token, dim, x);
    }
    uint4 words;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], args.query_scale);
    AttentionStoreOctet(reinterpret_cast<T*>(&words), x);
    staged[h][lane][warp] = words;
  }
  __syncthreads();
  const int octets = args.width / 8;
  for (int i = threadIdx.x; i < heads * octets * kQueries; i += kThreads) {
    const int query = first_query + i % kQueries;
    const int octet = i / kQueries % octets;
    const int h = i / (kQueries * octets);
    char* const to = args.Queries(first_head + h, slot) +
                     query / 64 * (128 * args.width) + octet * 1024 +
                     query % 64 * 16;
    *reinterpret_cast<uint4*>(to) = staged[h][octet][i % kQueries];
  }
}

template <typename T>
cudaError_t Launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>(args.query_tiles * (args.query_tile / kQueries)),
      static_cast<unsigned>((args.p.shape.num_heads + kHeads - 1) / kHeads));
  return LaunchDependent(attention_prefill_prepare_kernel<T>, grid, kThreads, 0,
                         stream, args);
}

}  // namespace

cudaError_t LaunchAttentionPrefillPrepare(const AttentionPrefillArgs& args,
                                          cudaStream_t stream) {
  return args.p.cache.element == WeightType::kBFloat16
             ? Launch<__nv_bfloat16>(args, stream)
             : Launch<__half>(args, stream);
}

}  // namespace recurve
