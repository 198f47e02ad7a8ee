// Queries of new tokens for decode: one block of 128 threads a token and 1, 2
// or 4 groups of 8 heads; factors staged in shared memory, sums over ranks in
// float32.
// Shapes: A_q [T, Rq, H], B_q [T, Rq, D] float32 (Rq = 0: whole queries
// [T, H, D]); queries [T, H / 8, 2 terms, D / 8, 8, 8] 16-bit.
// Floor: 4 · T · Rq · (H + D) bytes read, 4 · T · H · D written.
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/tpa/tpa_query.cuh"

namespace recurve {
namespace {

// ----------------------------------------------------------------------------
// CUDA kernels

// Above this number of query blocks, each takes more groups of heads, and reads
// a token's B_q once for them: then all are resident at once.
constexpr int64_t kManyBlocks = 512;
constexpr int kMaxShift = 2;

// One block a token and 2^shift groups of 8 heads, of D up to 64 kPairs.
template <typename T, int kPairs>
__global__ void __launch_bounds__(kTpaQueryThreads)
    tpa_queries_kernel(const __grid_constant__ TpaQueryArgs args) {
  extern __shared__ __align__(16) float staging[];
  LaunchDependents();
  WaitForPrevious();
  TpaQueryFormer<T, kPairs>(args, staging).Form(blockIdx.x, blockIdx.y);
}

template <typename T>
cudaError_t Launch(const TpaQueryArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.p.tokens),
                  static_cast<unsigned>(args.TokenBlocks()));
  const int64_t dim = args.p.shape.head_dim;
  const auto kernel = dim <= 64    ? tpa_queries_kernel<T, 1>
                      : dim <= 128 ? tpa_queries_kernel<T, 2>
                                   : tpa_queries_kernel<T, 4>;
  return LaunchDependent(kernel, grid, kTpaQueryThreads, args.staging, stream,
                         args);
}

// Whether all inputs of the tokens' queries are set.
bool Complete(const TpaCudaQueryParams& p) {
  return p.queries != nullptr && p.b_q != nullptr &&
         (p.shape.q_rank == 0 || p.a_q != nullptr) &&
         (p.position == LrpeType::kNone ||
          (p.cos != nullptr && p.sin != nullptr));
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

bool MakeTpaQueryArgs(const TpaCudaQueryParams& params, TpaQueryArgs* args) {
  const TpaShape& s = params.shape;
  if (!TpaDecodeSupports(s) || params.tokens < 0 ||
      params.position == LrpeType::kCosine || !IsAligned(params.queries) ||
      (params.tokens > 0 && !Complete(params))) {
    return false;
  }
  args->p = params;
  args->octets = TpaHeadOctets(s);
  args->scale = TpaQueryScale(s);
  args->shift = 0;
  while (params.tokens * args->TokenBlocks() > kManyBlocks && s.q_rank > 0 &&
         args->TokenBlocks() > 1 && args->shift < kMaxShift &&
         8 * s.q_rank << (args->shift + 1) <=
             kTpaQueryOwnHeads * kTpaQueryThreads) {
    ++args->shift;
  }
  args->staging = static_cast<int>(
      4 * s.q_rank *
      ((s.head_dim + 15) / 16 * 16 + (int64_t{8} << args->shift)));
  return true;
}

cudaError_t LaunchTpaQueries(const TpaCudaQueryParams& params,
                             cudaStream_t stream) {
  TpaQueryArgs args;
  if (!MakeTpaQueryArgs(params, &args)) return cudaErrorInvalidValue;
  if (params.tokens == 0) return cudaSuccess;
  return params.element == TpaElement::kBFloat16
             ? Launch<__nv_bfloat16>(args, stream)
             : Launch<__half>(args, stream);
}

}  // namespace recurve
