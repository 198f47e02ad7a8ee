// Linear-attention step in place: one block a row, head and 64 columns of the
// state, all loads of the state in flight at once in registers while q̃, k̃ and
// ṽ are made in shared memory.
// Shapes: q, k [B, H, D], v, out [B, H, E]; states [slots, H, Dk, E] with
// elements of e bytes.
// Floor: 2 · B · H · Dk · E · e bytes: states read and written once (q, k, v
// and out are small).
#include <cuda_bf16.h>

#include "kernels/seeds/linear_step/linear_step_check.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "kernels/seeds/linear_step/linear_step_device.cuh"

namespace recurve {
namespace {

using linear_step::Inputs;
using linear_step::Shape;
using linear_step::Vectors;

template <typename State>
using StepTile = linear_step::Tile<State>;

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (column tiles, heads, rows). Two dependent waits for memory: for the
// slot, with all loads that do not need it, and for the state, while q̃, k̃ and
// ṽ are made. With `inputs_first` the state's loads come a barrier later, but
// only the state waits for them; where it is false, p.overlap_previous is, too.
// Half a head a block fills the device with few rows, and keeps 160 KB a
// multiprocessor in flight with many.
template <typename IO, typename State>
__global__ void __launch_bounds__(kLinearBoundThreads, 1)
    linear_step_kernel(const __grid_constant__ LinearStepParams p,
                       const __grid_constant__ Shape s,
                       const __grid_constant__ bool inputs_first) {
  constexpr int kVector = StepTile<State>::kVector;
  extern __shared__ __align__(16) float shared[];
  float* partial = shared + 2 * s.key_dim + s.value_dim;
  const Vectors vectors = {shared, shared + s.key_dim, shared + 2 * s.key_dim,
                           partial,
                           partial + blockDim.x / 32 * kLinearTileColumns};

  const int64_t row = blockIdx.z;
  const int64_t head = blockIdx.y;
  // These are in flight together; a row beyond the count has memory, too.
  const int rows = p.rows == nullptr ? gridDim.z : LoadNow(p.rows);
  const int slot = LoadNow(p.slots + row);
  const int64_t position =
      p.positions == nullptr ? 0 : LoadNow(p.positions + row);
  Inputs<IO> inputs;
  inputs.LoadSteady(p, s, head);
  inputs.Load(p, s, row, head, !p.overlap_previous);
  // One branch on both: two would make the second load wait for the first.
  const int rows_left = rows - static_cast<int>(row);
  if (min(rows_left, slot) <= 0) {
    if (p.overlap_previous) linear_step::TakeTurn();
    if (rows_left > 0) linear_step::WriteZeros<IO>(p, s);
    return;
  }
  const int64_t head_start = head * s.key_dim * s.value_dim;
  StepTile<State> tile(static_cast<State*>(p.states) +
                           int64_t{slot} * p.slot_stride + head_start,
                       s);
  if (inputs_first) {
    inputs.StageSteady(s, position, vectors);
    if (!p.overlap_previous) inputs.Stage(s, vectors);
    __syncthreads();
    tile.Load();
    if (p.overlap_previous) {
      linear_step::TakeTurn();
      inputs.Load(p, s, row, head, true);
      inputs.Stage(s, vectors);
      __syncthreads();
    }
  } else {
    tile.Load();
    inputs.StageSteady(s, position, vectors);
    inputs.Stage(s, vectors);
    __syncthreads();
  }
  linear_step::MakeVectors(p, s, vectors);
  __syncthreads();

  const float decay = *vectors.decay;
  float sum[kVector] = {};
  float value[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    value[j] = tile.rows > 0 ? vectors.v[tile.column + j] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < StepTile<State>::kRows; ++i) {
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
  for (int c = threadIdx.x; c < kLinearTileColumns; c += blockDim.x) {
    const int column = blockIdx.x * kLinearTileColumns + c;
    if (column < s.value_dim) {
      out[column] = FromFloat<IO>(linear_step::ColumnSum(partial, c));
    }
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename IO, typename State>
cudaError_t Launch(const LinearStepParams& p, cudaStream_t stream) {
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  const LinearStepPlan plan = PlanLinearStep(key_dim, p.value_dim);
  const Shape shape = {static_cast<int>(p.head_dim), static_cast<int>(key_dim),
                       static_cast<int>(p.value_dim),
                       static_cast<int>(LrpeAngles(p.position, p.head_dim))};
  const int64_t floats = 2 * key_dim + p.value_dim +
                         plan.threads / 32 * int64_t{kLinearTileColumns} + 1;
  const int64_t blocks = plan.tiles * p.num_heads * p.max_rows;
  const bool inputs_first = p.overlap_previous || blocks <= kLinearFewBlocks;
  const auto kernel = linear_step_kernel<IO, State>;
  linear_step::LaunchConfig launch(p, plan, floats * sizeof(float),
                                   reinterpret_cast<const void*>(kernel),
                                   stream);
  return cudaLaunchKernelEx(&launch.config, kernel, p, shape, inputs_first);
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
