// Gated delta rule over prompts: launches of its two halves, in rounds that fit
// the workspace. The first half has a block for each chunk and value head
// (gated_delta_prepare.cuh), the second one for each 64 columns of a row's
// state (gated_delta_chunks.cuh).
// Shapes: q, k [T, Hk, D], v, out [T, Hv, E] of e bytes, states [slots, Hv, D,
// E] float32.
// Floor: e · T · (2 Hk D + 2 Hv E) bytes; images are read and written, too.
#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/gated_delta/gated_delta_chunks.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_cuda.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prepare.cuh"

namespace recurve {
namespace {

using gated_delta::Round;

int Terms(DeltaPrecision precision) {
  return precision == DeltaPrecision::kBFloat16 ? 1 : 2;
}

bool ValidPrefill(const GatedDeltaPrefillParams& params) {
  const GatedDeltaParams& p = params.of;
  const int64_t pack = p.type == ElementType::kFloat32 ? 4 : 8;
  const int64_t out_pack = p.out_type == ElementType::kFloat32 ? 4 : 8;
  return DeltaPrefillDoes(p.key_heads, p.value_heads, p.head_dim,
                          p.value_dim) &&
         (p.type == ElementType::kFloat32 ||
          params.precision == DeltaPrecision::kBFloat16) &&
         p.sequences >= 0 && p.sequences <= 65535 && params.tokens >= 0 &&
         params.tokens <= INT32_MAX && p.stride % pack == 0 &&
         p.out_stride % out_pack == 0 && p.slot_stride % 4 == 0 &&
         IsAligned(p.q) && IsAligned(p.k) && IsAligned(p.v) &&
         IsAligned(p.out) && IsAligned(p.states) && IsAligned(params.workspace);
}

bool HasPointers(const GatedDeltaPrefillParams& params) {
  const GatedDeltaParams& p = params.of;
  return p.q != nullptr && p.k != nullptr && p.v != nullptr && p.a != nullptr &&
         p.b != nullptr && p.out != nullptr && p.query_start != nullptr &&
         p.slots != nullptr && p.states != nullptr &&
         params.positions != nullptr && params.workspace != nullptr &&
         (p.gate.decay == DeltaDecay::kLog || p.gate.a_log != nullptr);
}

template <typename T, int kTerms, bool kChannel>
cudaError_t LaunchRound(const Round& round, int64_t total, DeltaHalves halves,
                        cudaStream_t stream) {
  const GatedDeltaParams& p = round.p.of;
  constexpr int kPrepareBytes =
      gated_delta::PrepareSharedBytes<kTerms, kChannel>();
  constexpr int kChunksBytes = gated_delta::ChunksSharedBytes<kTerms>();
  const auto prepare = gated_delta::delta_prepare_kernel<T, kTerms, kChannel>;
  const auto chunks = gated_delta::delta_chunks_kernel<kTerms>;
  cudaError_t error = PrepareHopperKernel(prepare, kPrepareBytes);
  if (error == cudaSuccess) error = PrepareHopperKernel(chunks, kChunksBytes);
  if (error != cudaSuccess) return error;
  if (halves != DeltaHalves::kChunks) {
    error = LaunchDependent(prepare,
                            dim3(static_cast<unsigned>(p.value_heads),
                                 static_cast<unsigned>(total)),
                            gated_delta::kPrepareThreads, kPrepareBytes, stream,
                            round);
  }
  if (error != cudaSuccess || halves == DeltaHalves::kPrepare) return error;
  return LaunchDependent(chunks,
                         dim3(static_cast<unsigned>(DeltaSplits(p.value_dim)),
                              static_cast<unsigned>(p.value_heads),
                              static_cast<unsigned>(p.sequences)),
                         gated_delta::kChunksThreads, kChunksBytes, stream,
                         round);
}

template <typename T, int kTerms>
cudaError_t LaunchOf(const Round& round, int64_t total, DeltaHalves halves,
                     cudaStream_t stream) {
  return round.p.of.gate.by_channel
             ? LaunchRound<T, kTerms, true>(round, total, halves, stream)
             : LaunchRound<T, kTerms, false>(round, total, halves, stream);
}

cudaError_t LaunchTyped(const Round& round, int64_t total, DeltaHalves halves,
                        cudaStream_t stream) {
  if (round.p.of.type == ElementType::kBFloat16) {
    return LaunchOf<__nv_bfloat16, 1>(round, total, halves, stream);
  }
  return Terms(round.p.precision) == 1
             ? LaunchOf<float, 1>(round, total, halves, stream)
             : LaunchOf<float, 2>(round, total, halves, stream);
}

}  // namespace

int64_t GatedDeltaPrefillWorkspace(int64_t tokens, int64_t sequences,
                                   int64_t value_heads, int64_t value_dim,
                                   DeltaPrecision precision) {
  return (tokens / kDeltaChunk + 2 * sequences) *
         DeltaChunkBytes(value_heads, value_dim, Terms(precision));
}

cudaError_t LaunchGatedDeltaPrefill(const GatedDeltaPrefillParams& params,
                                    cudaStream_t stream, DeltaHalves halves) {
  const GatedDeltaParams& p = params.of;
  if (!ValidPrefill(params)) return cudaErrorInvalidValue;
  if (p.sequences == 0 || params.tokens == 0) return cudaSuccess;
  if (!HasPointers(params)) return cudaErrorInvalidValue;
  const int terms = Terms(params.precision);
  const DeltaPrefillPlan plan =
      PlanDeltaPrefill(params.tokens, p.sequences,
                       params.workspace_bytes /
                           DeltaChunkBytes(p.value_heads, p.value_dim, terms));
  if (plan.rounds == 0) return cudaErrorInvalidValue;
  Round round = {};
  round.p = params;
  round.chunks = plan.chunks;
  round.images = static_cast<char*>(params.workspace);
  round.values =
      round.images + plan.total * p.value_heads * DeltaImageBytes(terms);
  for (int64_t r = 0; r < plan.rounds; ++r) {
    round.first = r * plan.chunks;
    round.resumes = r > 0;
    const cudaError_t error = LaunchTyped(round, plan.total, halves, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace recurve
