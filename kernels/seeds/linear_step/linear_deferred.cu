// Deferred linear-attention step: one block a row, head and 64 columns; the
// state is read in 16-byte loads, the last tokens' k̃ and ṽ come from a ring in
// memory (cp.async), and every L-th token folds the ring into the state.
// Shapes: q, k [B, H, D], v, out [B, H, E]; states [slots, H, Dk, E] with
// elements of e bytes; ring [slots, H, L, Dk + E] float32.
// Floor a step: B · H · Dk · E · e · (1 + 1 / L) bytes of states, and about
// 2 · B · H · (L + 1) · (Dk + E) of ring entries (averages).
#include <cuda_bf16.h>

#include "kernels/seeds/linear_step/linear_step_check.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "kernels/seeds/linear_step/linear_step_device.cuh"

namespace recurve {
namespace {

using linear_step::Four;
using linear_step::Inputs;
using linear_step::LoadNow;
using linear_step::Shape;
using linear_step::Vectors;

template <typename State>
using RowsTile = linear_step::Tile<State, /*kAdjacent=*/true>;

// ----------------------------------------------------------------------------
// The ring

// The tokens [first, first + count) in the ring of a sequence.
struct Pending {
  int64_t first;
  int count;
};

__device__ __forceinline__ Pending PendingBefore(int64_t position,
                                                 int64_t start, int ring) {
  const int64_t fold = position & ~int64_t{ring - 1};
  const int64_t first = max(start, fold);
  return {first, static_cast<int>(max(position - first, int64_t{0}))};
}

// A block's part of the ring in shared memory.
struct RingTile {
  float* k;      // [ring, Dk]
  float* v;      // [ring, columns]
  float* power;  // [ring + 1] λ^i
};

// An entry of the ring of one head, in memory.
__device__ __forceinline__ float* Entry(float* head_ring, const Shape& s,
                                        int64_t token, int ring) {
  return head_ring + (token & (ring - 1)) * int64_t{s.key_dim + s.value_dim};
}

__device__ __forceinline__ void CopyAsync(float* shared, const float* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global));
}

// Starts the copy of the pending entries, each by a warp; CopyWait and a
// barrier end it.
__device__ void StartRing(float* head_ring, const Shape& s,
                          const Pending& pending, int ring,
                          const RingTile& to) {
  const int first_column = blockIdx.x * kLinearTileColumns;
  const int keys = s.key_dim / 4;
  const int values = min(kLinearTileColumns, s.value_dim - first_column) / 4;
  for (int e = threadIdx.x / 32; e < pending.count; e += blockDim.x / 32) {
    const float* entry = Entry(head_ring, s, pending.first + e, ring);
    for (int i = threadIdx.x % 32; i < keys + values; i += 32) {
      if (i < keys) {
        CopyAsync(to.k + e * s.key_dim + 4 * i, entry + 4 * i);
      } else {
        CopyAsync(to.v + e * kLinearTileColumns + 4 * (i - keys),
                  entry + s.key_dim + first_column + 4 * (i - keys));
      }
    }
  }
}

__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ void MakePowers(float decay, int count, float* power) {
  for (int i = threadIdx.x; i <= count; i += blockDim.x) {
    float x = 1.0f;
    for (int j = 0; j < i; ++j) x *= decay;
    power[i] = x;
  }
}

// S ← λ^m S + Σ_e λ^(m−1−e) k̃_e ṽ_eᵀ over m entries, in the tile and then in
// memory. `position` is that of the last token.
template <typename State>
__device__ void FoldTile(const RowsTile<State>& tile, const RingTile& ring,
                         int m, const Shape& s, int64_t head, uint64_t seed,
                         int64_t position) {
  constexpr int kVector = RowsTile<State>::kVector;
  constexpr int kRows = RowsTile<State>::kRows;
  const int column = tile.column - blockIdx.x * kLinearTileColumns;
  float x[kRows][kVector];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i >= tile.rows) break;
    tile.Get(i, x[i]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[i][j] *= ring.power[m];
  }
#pragma unroll 1
  for (int e = 0; e < m; ++e) {
    float value[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      value[j] =
          ring.power[m - 1 - e] * ring.v[e * kLinearTileColumns + column + j];
    }
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      if (first >= tile.rows) break;
      const Four key(ring.k + e * s.key_dim + tile.Row(first));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          x[first + i][j] = fmaf(key.value[i], value[j], x[first + i][j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i >= tile.rows) break;
    const int64_t element =
        (head * s.key_dim + tile.Row(i)) * s.value_dim + tile.column;
    linear_step::StoreRow(tile, i, x[i], seed, element, position);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Row, slot and positions of a block.
struct Where {
  int rows_left;
  int slot;
  int64_t position;
  int64_t start;
};

__device__ __forceinline__ Where LoadWhere(const LinearDeferredParams& p) {
  const int64_t row = blockIdx.z;
  const int rows = p.step.rows == nullptr ? gridDim.z : LoadNow(p.step.rows);
  const int slot = LoadNow(p.step.slots + row);
  const int64_t position = LoadNow(p.step.positions + row);
  const int64_t start = LoadNow(p.ring_start + row);
  return {rows - static_cast<int>(row), slot, position, start};
}

template <typename State>
__device__ __forceinline__ State* HeadState(const LinearStepParams& p,
                                            const Shape& s, int64_t slot,
                                            int64_t head) {
  return static_cast<State*>(p.states) + slot * p.slot_stride +
         head * s.key_dim * s.value_dim;
}

__device__ __forceinline__ float* HeadRing(const LinearDeferredParams& p,
                                           const Shape& s, int64_t slot,
                                           int64_t head) {
  return p.ring + slot * p.ring_slot_stride +
         head * p.ring_length * (s.key_dim + s.value_dim);
}

template <typename IO, typename State>
__global__ void __launch_bounds__(kLinearBoundThreads, 1)
    linear_deferred_kernel(const __grid_constant__ LinearDeferredParams params,
                           const __grid_constant__ Shape s) {
  constexpr int kVector = RowsTile<State>::kVector;
  const LinearStepParams& p = params.step;
  const int ring_length = static_cast<int>(params.ring_length);
  extern __shared__ __align__(16) float shared[];
  float* q = shared;
  float* v = q + s.key_dim;
  const RingTile ring = {
      v + s.value_dim, v + s.value_dim + ring_length * s.key_dim,
      v + s.value_dim + ring_length * (s.key_dim + kLinearTileColumns)};
  float* weight = ring.power + ring_length + 1;
  float* partial = weight + ring_length;

  const int64_t head = blockIdx.y;
  const Where at = LoadWhere(params);
  Inputs<IO> inputs;
  inputs.LoadSteady(p, s, head);
  inputs.Load(p, s, blockIdx.z, head, !p.overlap_previous);
  if (min(at.rows_left, at.slot) <= 0) {
    if (p.overlap_previous) linear_step::WaitForPrevious();
    if (at.rows_left > 0) linear_step::WriteZeros<IO>(p, s);
    return;
  }
  const Pending pending = PendingBefore(at.position, at.start, ring_length);
  const int n = pending.count;  // the new token's entry is the n-th
  const bool fold = ((at.position + 1) & (ring_length - 1)) == 0;
  const Vectors vectors = {q, ring.k + n * s.key_dim, v, partial,
                           partial + blockDim.x / 32 * kLinearTileColumns};
  RowsTile<State> tile(HeadState<State>(p, s, at.slot, head), s);
  float* head_ring = HeadRing(params, s, at.slot, head);
  inputs.StageSteady(s, at.position, vectors);
  if (p.overlap_previous) {
    __syncthreads();
    tile.Load();
    StartRing(head_ring, s, pending, ring_length, ring);
    linear_step::WaitForPrevious();
    inputs.Load(p, s, blockIdx.z, head, true);
    inputs.Stage(s, vectors);
    __syncthreads();
  } else {
    inputs.Stage(s, vectors);
    __syncthreads();
    tile.Load();
    StartRing(head_ring, s, pending, ring_length, ring);
  }
  linear_step::MakeVectors(p, s, vectors);
  MakePowers(*vectors.decay, n + 1, ring.power);
  CopyWait();
  __syncthreads();

  // The new entry: into the tile, and into memory unless the fold consumes it.
  float* entry = Entry(head_ring, s, at.position, ring_length);
  for (int c = threadIdx.x; c < kLinearTileColumns; c += blockDim.x) {
    const int column = blockIdx.x * kLinearTileColumns + c;
    if (column >= s.value_dim) break;
    ring.v[n * kLinearTileColumns + c] = v[column];
    if (!fold) entry[s.key_dim + column] = v[column];
  }
  if (!fold && blockIdx.x == 0 && threadIdx.x < s.key_dim) {
    entry[threadIdx.x] = vectors.k[threadIdx.x];
  }

  // λ^(n−e) (q̃ · k̃_e), a warp an entry.
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e <= n; e += blockDim.x / 32) {
    float dot = 0.0f;
    for (int i = lane; i < s.key_dim; i += 32) {
      dot = fmaf(q[i], ring.k[e * s.key_dim + i], dot);
    }
    dot = LaneSum(dot);
    if (lane == 0) weight[e] = ring.power[n - e] * dot;
  }

  // Scᵀ q̃.
  float sum[kVector] = {};
#pragma unroll
  for (int first = 0; first < RowsTile<State>::kRows; first += 4) {
    if (first >= tile.rows) break;
    const Four query(q + tile.Row(first));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[kVector];
      tile.Get(first + i, x);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        sum[j] = fmaf(query.value[i], x[j], sum[j]);
      }
    }
  }
  linear_step::GatherColumns(sum, partial);

  if (fold) FoldTile(tile, ring, n + 1, s, head, p.rounding_seed, at.position);
  IO* out = static_cast<IO*>(p.out) + int64_t{blockIdx.z} * p.out_stride +
            head * s.value_dim;
  for (int c = threadIdx.x; c < kLinearTileColumns; c += blockDim.x) {
    const int column = blockIdx.x * kLinearTileColumns + c;
    if (column >= s.value_dim) break;
    float total = ring.power[n + 1] * linear_step::ColumnSum(partial, c);
    for (int e = 0; e <= n; ++e) {
      total = fmaf(weight[e], ring.v[e * kLinearTileColumns + c], total);
    }
    out[column] = FromFloat<IO>(total);
  }
}

template <typename State>
__global__ void __launch_bounds__(kLinearBoundThreads, 1)
    linear_fold_kernel(const __grid_constant__ LinearDeferredParams params,
                       const __grid_constant__ Shape s) {
  const LinearStepParams& p = params.step;
  const int ring_length = static_cast<int>(params.ring_length);
  extern __shared__ __align__(16) float shared[];
  const RingTile ring = {
      shared, shared + ring_length * s.key_dim,
      shared + ring_length * (s.key_dim + kLinearTileColumns)};
  const int64_t head = blockIdx.y;
  const Where at = LoadWhere(params);
  if (p.overlap_previous) linear_step::WaitForPrevious();
  if (min(at.rows_left, at.slot) <= 0) return;
  const Pending pending = PendingBefore(at.position, at.start, ring_length);
  if (pending.count == 0) return;
  RowsTile<State> tile(HeadState<State>(p, s, at.slot, head), s);
  tile.Load();
  StartRing(HeadRing(params, s, at.slot, head), s, pending, ring_length, ring);
  MakePowers(p.decay[head], pending.count, ring.power);
  CopyWait();
  __syncthreads();
  FoldTile(tile, ring, pending.count, s, head, p.rounding_seed,
           at.position - 1);
}

// ----------------------------------------------------------------------------
// Launchers

struct LaunchPlan {
  Shape shape;
  LinearStepPlan plan;
  size_t ring_bytes;  // of shared memory: RingTile and the weights
  size_t step_bytes;  // and the vectors and partial sums of a step
};

LaunchPlan PlanLaunch(const LinearDeferredParams& params) {
  const LinearStepParams& p = params.step;
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  const LinearStepPlan plan = PlanLinearStep(key_dim, p.value_dim);
  const int64_t ring =
      params.ring_length * (key_dim + kLinearTileColumns + 2) + 1;
  const int64_t step = key_dim + p.value_dim +
                       plan.threads / 32 * int64_t{kLinearTileColumns} + 1;
  return {{static_cast<int>(p.head_dim), static_cast<int>(key_dim),
           static_cast<int>(p.value_dim),
           static_cast<int>(LrpeAngles(p.position, p.head_dim))},
          plan,
          ring * sizeof(float),
          (ring + step) * sizeof(float)};
}

template <typename IO, typename State>
cudaError_t LaunchStep(const LinearDeferredParams& params,
                       cudaStream_t stream) {
  const LaunchPlan plan = PlanLaunch(params);
  const auto kernel = linear_deferred_kernel<IO, State>;
  linear_step::LaunchConfig launch(params.step, plan.plan, plan.step_bytes,
                                   reinterpret_cast<const void*>(kernel),
                                   stream);
  return cudaLaunchKernelEx(&launch.config, kernel, params, plan.shape);
}

template <typename State>
cudaError_t LaunchFold(const LinearDeferredParams& params,
                       cudaStream_t stream) {
  const LaunchPlan plan = PlanLaunch(params);
  const auto kernel = linear_fold_kernel<State>;
  linear_step::LaunchConfig launch(params.step, plan.plan, plan.ring_bytes,
                                   reinterpret_cast<const void*>(kernel),
                                   stream);
  return cudaLaunchKernelEx(&launch.config, kernel, params, plan.shape);
}

}  // namespace

cudaError_t LaunchLinearDeferredStep(const LinearDeferredParams& params,
                                     cudaStream_t stream) {
  if (!ValidLinearStep(params.step) || !ValidLinearRing(params)) {
    return cudaErrorInvalidValue;
  }
  if (params.step.max_rows == 0) return cudaSuccess;
  const bool bf16_state = params.step.state_type == ElementType::kBFloat16;
  if (params.step.io_type == ElementType::kBFloat16) {
    return bf16_state ? LaunchStep<__nv_bfloat16, __nv_bfloat16>(params, stream)
                      : LaunchStep<__nv_bfloat16, float>(params, stream);
  }
  return bf16_state ? LaunchStep<float, __nv_bfloat16>(params, stream)
                    : LaunchStep<float, float>(params, stream);
}

cudaError_t LaunchLinearFold(const LinearDeferredParams& params,
                             cudaStream_t stream) {
  if (!ValidLinearState(params.step) || !ValidLinearRing(params)) {
    return cudaErrorInvalidValue;
  }
  if (params.step.max_rows == 0) return cudaSuccess;
  return params.step.state_type == ElementType::kBFloat16
             ? LaunchFold<__nv_bfloat16>(params, stream)
             : LaunchFold<float>(params, stream);
}

}  // namespace recurve
