// Prefill of softmax attention in plain arithmetic, for float32 caches and for
// GPUs other than sm_90: a block of four warps an octet of query heads takes
// one query and kv head through all of its pages.
// Shapes: q [T, H, D] float32; pages of K [64, D], V [64, E] a kv head; out
// [T, H, E].
// Floor: 2 · H · (D + E) flops for each pair of a query and a token that it
// sees; this reads keys and values from L2 for each query.
#include "kernels/attention/attention_encode.cuh"
#include "kernels/attention/decode/attention_plain.cuh"
#include "kernels/attention/prefill/attention_prefill.cuh"
#include "kernels/common/dependent_launch.cuh"

namespace recurve {
namespace {

template <typename T>
__global__ void __launch_bounds__(256, 1) attention_prefill_plain_kernel(
    const __grid_constant__ AttentionPrefillArgs args,
    const __grid_constant__ AttentionDecodeArgs decode) {
  extern __shared__ __align__(1024) char shared[];
  LaunchDependents();
  WaitForPrevious();
  const int slot = static_cast<int>(blockIdx.x) / args.query_tile;
  const int query = static_cast<int>(blockIdx.x) % args.query_tile;
  if (slot >= args.header().query_tiles) return;
  const AttentionPrefillTile tile =
      args.Scheduled<AttentionPrefillTile>(args.parts.by_slot)[slot];
  if (query >= tile.queries) return;
  const AttentionPrefillParams& p = args.p;
  const int octet = static_cast<int>(threadIdx.x) / 128;
  const int dim = static_cast<int>(p.shape.head_dim);
  AttentionItem item;
  item.row = tile.token + query;
  item.head = static_cast<int>(blockIdx.y);
  item.chunk = 0;
  item.work.chunks = 1;
  AttentionFinisher<256> finisher(
      decode, octet, shared + 1024 * octet,
      shared + 1024 * decode.octets +
          octet * AttentionSharedLayout::ExchangeBytes(256));
  AttentionPlainWorker<T> worker(decode.layout, decode.p.cache, dim,
                                 static_cast<int>(p.shape.value_dim));
  worker.Begin();
#pragma unroll
  for (int h = 0; h < 8; ++h) {
    if (h >= decode.heads_of(octet)) continue;
    float x[8];
    const int64_t head = item.head * args.group + 8 * octet + h;
    AttentionLoadOctet(p.q + item.row * p.stride + head * dim, dim,
                       args.aligned, x);
    AttentionEncode(p.norm, p.position, item.row, dim, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      worker.queries[h][i] = __fmul_rn(x[i], args.query_scale);
    }
  }
  const int length = tile.position + query + 1;
  worker.Attend(p.cache.page_table + tile.row * p.cache.page_table_stride, 0,
                AttentionPages(length), length, item.head);
  AttentionFinishPlain(finisher, worker, item);
}

template <typename T>
cudaError_t Launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  AttentionDecodeArgs decode = {AttentionCudaDecodeParams{}, args.layout};
  decode.p.shape = args.p.shape;
  decode.p.cache = args.p.cache;
  decode.p.out = args.p.out;
  decode.group = args.group;
  decode.octets = (args.group + 7) / 8;
  const dim3 grid(static_cast<unsigned>(args.query_tiles * args.query_tile),
                  static_cast<unsigned>(args.p.shape.num_kv_heads));
  return LaunchDependent(
      attention_prefill_plain_kernel<T>, grid, 128 * decode.octets,
      AttentionPlainBytes(decode.octets), stream, args, decode);
}

}  // namespace

cudaError_t LaunchAttentionPrefillPlain(const AttentionPrefillArgs& args,
                                        cudaStream_t stream) {
  switch (args.p.cache.element) {
    case WeightType::kFloat32:
      return Launch<float>(args, stream);
    case WeightType::kBFloat16:
      return Launch<__nv_bfloat16>(args, stream);
    case WeightType::kFloat16:
      return Launch<__half>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace recurve
