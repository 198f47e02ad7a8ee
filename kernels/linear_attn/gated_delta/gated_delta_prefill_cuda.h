#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_CUDA_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/linear_attn/gated_delta/gated_delta.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_plan.h"

namespace recurve {

// Factors of the products on tensor cores: sums and states are float32.
enum class DeltaPrecision {
  kBFloat16,  // one bfloat16 each
  kFloat32,   // two bfloat16 terms, 16 bits; products to about 2⁻¹⁶. For
              // float32 inputs only.
};

// gated_delta.h on the GPU over prompts, by chunks of 64 tokens (WY form:
// Bischof and Van Loan, 1987; Yang et al., 2024). For tokens i, j of a chunk
// that begins with state S₀, γ_i the sum of g up to i, L strictly lower:
//
//   L_ij = β_i e^(γ_i − γ_j) k̂_i · k̂_j,            (I + L) U = β V,
//   (I + L) W = β e^γ K,                             Δ = U − W S₀
//   o_i = e^γ_i S₀ᵀ q̂_i + Σ_{j ≤ i} e^(γ_i − γ_j) (q̂_i · k̂_j) Δ_j
//   S   = e^γ_C S₀ + Σ_j e^(γ_C − γ_j) k̂_j Δ_jᵀ
//
// with e^γ of each key feature where decay is by channel.
//
// Every pointer is device memory, 16-byte aligned with strides that are
// multiples of 16 bytes (those of a and b: any).
//
// Exactness: chunks end at multiples of kDeltaChunk of the absolute position,
// and a row's results depend on that row alone, not on the batch, the workspace
// or what follows. A prompt that is cut gives the same result within rounding;
// cut at multiples of kDeltaChunk, exactly the same bits.
struct GatedDeltaPrefillParams {
  // of.sequences: those of the launch, at most 65535. Slot 0 is the sink: its
  // rows read and write no state, and their out is 0.
  GatedDeltaParams of;
  int64_t tokens;            // rows of all sequences, at most
  const int32_t* live;       // [1] sequences in use, null: all
  const int64_t* positions;  // [sequences] of the first token, >= 0
  const int32_t* fresh;      // [sequences] not 0: the state before the first
                             // token is zero, and the slot is not read. Null:
                             // none is.
  DeltaPrecision precision;
  void* workspace;  // at least a chunk for each sequence
  int64_t workspace_bytes;
};

// For measurements: one kernel alone. kChunks takes the workspace as it is.
enum class DeltaHalves { kBoth, kPrepare, kChunks };

// Bytes with which a launch has one round.
int64_t GatedDeltaPrefillWorkspace(int64_t tokens, int64_t sequences,
                                   int64_t value_heads, int64_t value_dim,
                                   DeltaPrecision precision);

// cudaErrorInvalidValue for sizes that DeltaPrefillDoes not take, a pointer
// that is missing or not aligned, or too small a workspace;
// cudaErrorNotSupported on a device of compute capability other than 9.0.
cudaError_t LaunchGatedDeltaPrefill(const GatedDeltaPrefillParams& params,
                                    cudaStream_t stream,
                                    DeltaHalves halves = DeltaHalves::kBoth);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREFILL_CUDA_H_
