#include <cuda_bf16.h>

#include "kernels/linear_attn/linear_step_check.h"
#include "kernels/linear_attn/linear_step_cuda.h"
#include "kernels/linear_attn/linear_step_device.cuh"

namespace recurve {
namespace {

using linear_step::Inputs;
using linear_step::Shape;
using linear_step::Tile;
using linear_step::Vectors;

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (column tiles, heads, rows). The state is read once and written once;
// its loads are in flight while q̃, k̃ and ṽ are made. A block is small, so that
// a batch of one fills the device and a large batch keeps many tiles in flight.
template <typename IO, typename State>
__global__ void __launch_bounds__(kLinearMaxThreads, sizeof(State) == 4 ? 2 : 1)
    linear_step_kernel(const __grid_constant__ LinearStepParams p,
                       const __grid_constant__ Shape s) {
  constexpr int kColumns = Tile<State>::kColumns;
  constexpr int kVector = Tile<State>::kVector;
  extern __shared__ __align__(16) float shared[];
  const Vectors vectors = {shared, shared + s.key_dim, shared + 2 * s.key_dim};
  float* partial = vectors.v + s.value_dim;

  const int64_t row = blockIdx.z;
  const int64_t head = blockIdx.y;
  // All of these are in flight together; a row beyond the count has memory,
  // too.
  const int rows = p.rows == nullptr ? gridDim.z : linear_step::LoadNow(p.rows);
  const int slot = linear_step::LoadNow(p.slots + row);
  const int64_t position =
      p.positions == nullptr ? 0 : linear_step::LoadNow(p.positions + row);
  // One branch on both: two would make the second load wait for the first.
  const int rows_left = rows - static_cast<int>(row);
  if (min(rows_left, slot) <= 0) {
    if (rows_left > 0) linear_step::WriteZeros<IO>(p, s, kColumns);
    return;
  }
  const Inputs<IO> inputs(p, s, row, head);
  const float decay = p.decay[head];
  const int64_t head_start = head * s.key_dim * s.value_dim;
  Tile<State> tile(static_cast<State*>(p.states) +
                       int64_t{slot} * p.slot_stride + head_start,
                   s);
  tile.Load();
  linear_step::MakeVectors<IO>(p, s, inputs, position, vectors);
  __syncthreads();

  float sum[kVector] = {};
  float value[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    value[j] = tile.rows > 0 ? vectors.v[tile.column + j] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kLinearRowsPerLane; ++i) {
    if (i >= tile.rows) break;
    const float query = vectors.q[tile.Row(i)];
    const float key = vectors.k[tile.Row(i)];
    float x[kVector];
    tile.Get(i, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      x[j] = fmaf(decay, x[j], key * value[j]);
      sum[j] = fmaf(query, x[j], sum[j]);
    }
    linear_step::StoreRow(
        tile, i, x, p.rounding_seed,
        head_start + int64_t{tile.Row(i)} * s.value_dim + tile.column,
        position);
  }
  linear_step::GatherColumns(sum, partial);

  IO* out = static_cast<IO*>(p.out) + row * p.out_stride + head * s.value_dim;
  for (int c = threadIdx.x; c < kColumns; c += blockDim.x) {
    const int column = blockIdx.x * kColumns + c;
    if (column < s.value_dim) {
      out[column] = FromFloat<IO>(linear_step::ColumnSum<kColumns>(partial, c));
    }
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename IO, typename State>
cudaError_t Launch(const LinearStepParams& p, cudaStream_t stream) {
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  const LinearStepPlan plan =
      PlanLinearStep(key_dim, p.value_dim, p.state_type);
  const Shape shape = {static_cast<int>(p.head_dim), static_cast<int>(key_dim),
                       static_cast<int>(p.value_dim),
                       static_cast<int>(LrpeAngles(p.position, p.head_dim))};
  const dim3 grid(plan.tiles, static_cast<unsigned>(p.num_heads),
                  static_cast<unsigned>(p.max_rows));
  const int64_t floats =
      2 * key_dim + p.value_dim + plan.threads / 32 * plan.tile_columns;
  linear_step_kernel<IO, State>
      <<<grid, plan.threads, floats * sizeof(float), stream>>>(p, shape);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchLinearStep(const LinearStepParams& p, cudaStream_t stream) {
  if (!ValidLinearStep(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  const bool bf16_state = p.state_type == ElementType::kBFloat16;
  if (p.io_type == ElementType::kBFloat16) {
    return bf16_state ? Launch<__nv_bfloat16, __nv_bfloat16>(p, stream)
                      : Launch<__nv_bfloat16, float>(p, stream);
  }
  return bf16_state ? Launch<float, __nv_bfloat16>(p, stream)
                    : Launch<float, float>(p, stream);
}

}  // namespace recurve
