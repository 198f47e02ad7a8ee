// Deferred step of linear attention in float32: one block a sequence, head and
// 64 columns of the state, in registers (16 bytes of each of 16 rows a thread);
// the last tokens' k̃ and ṽ come from a ring in memory (cp.async), and every
// eighth token folds them into the state.
// Shapes: q, k [T, H, D], v, out [T, H, E]; states [slots, H, Dk, E]; rings
// [slots, H, E / 64, 8, Dk + 64]; all float32.
// Floor a token: 4 · H · Dk · E · (1 + 1 / 8) bytes of the state, and about
// 18 · H · E / 64 · (Dk + 64) of the ring.
#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_vectors.cuh"
#include "kernels/linear_attn/step/linear_deferred_cuda.h"

namespace recurve {
namespace {

constexpr int kRing = kLinearRing;
constexpr int kColumns = kLinearRingColumns;
constexpr int kVector = 4;                            // columns of a thread
constexpr int kLanes = kColumns / kVector;            // that share a row
constexpr int kRows = kLinearRingRows * kLanes / 32;  // of a thread, adjacent
// Five blocks of 128 threads a multiprocessor, with 160 KB of loads in flight.
constexpr int kBoundThreads = 640;

struct Shape {
  int head_dim;
  int key_dim;
  int value_dim;
  int angles;
};

// What a block has in shared memory.
struct Shared {
  __device__ Shared(float* at, const Shape& s, int warps)
      : q_in(at),
        k_in(q_in + s.head_dim),
        q(k_in + s.head_dim),
        k(q + s.key_dim),
        v(k + kRing * s.key_dim),
        partial(v + kRing * kColumns),
        power(partial + warps * kColumns),
        weight(power + kRing + 1) {}
  static int64_t Floats(const Shape& s, int warps) {
    return 2 * s.head_dim + (1 + kRing) * s.key_dim + kRing * kColumns +
           warps * kColumns + 2 * kRing + 1;
  }

  float* q_in;     // [D] activated
  float* k_in;     // [D]
  float* q;        // [Dk] q̃
  float* k;        // [ring, Dk] k̃ of the tokens since the last fold
  float* v;        // [ring, columns] ṽ, likewise
  float* partial;  // [warps, columns]
  float* power;    // [ring + 1] λ^i
  float* weight;   // [ring] λ^(n−j) (q̃ · k̃_j)
};

// A thread's part of a block's tile of the state.
struct Tile {
  __device__ Tile(float* head_state, const Shape& s)
      : column(threadIdx.x % kLanes * kVector),
        row(threadIdx.x / 32 * kLinearRingRows +
            threadIdx.x % 32 / kLanes * kRows),
        stride(s.value_dim),
        rows(blockIdx.x * kColumns + column < s.value_dim
                 ? min(s.key_dim - row, kRows)
                 : 0),
        state(head_state + int64_t{row} * s.value_dim + blockIdx.x * kColumns +
              column) {}

  // Bypasses L1: evict-first in L2 would cost 2% at large batches.
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      x[i] = i < rows ? __ldcg(Address(i)) : float4{};
    }
  }
  __device__ __forceinline__ void Store() const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) *Address(i) = x[i];
    }
  }
  __device__ __forceinline__ float4* Address(int i) const {
    return reinterpret_cast<float4*>(state + int64_t{i} * stride);
  }

  int column;  // first of kVector, in the block's columns
  int row;     // first of kRows
  int stride;
  int rows;  // that exist, a multiple of 8, or none
  float* state;
  float4 x[kRows];
};

__device__ __forceinline__ float4 Four(const float* x) {
  return *reinterpret_cast<const float4*>(x);
}
__device__ __forceinline__ void AddScaled(float a, const float4& b, float4* x) {
  x->x = fmaf(a, b.x, x->x);
  x->y = fmaf(a, b.y, x->y);
  x->z = fmaf(a, b.z, x->z);
  x->w = fmaf(a, b.w, x->w);
}
__device__ __forceinline__ float4 Scaled(float a, const float4& b) {
  return {a * b.x, a * b.y, a * b.z, a * b.w};
}

// The ring of a block, in memory, and the entry of a token in it.
__device__ __forceinline__ float* BlockRing(const LinearDeferredParams& p,
                                            const Shape& s, int64_t slot,
                                            int head) {
  return p.rings + slot * p.of.slot_stride +
         (int64_t{head} * gridDim.x + blockIdx.x) * kRing *
             (s.key_dim + kColumns);
}
__device__ __forceinline__ float* Entry(float* ring, const Shape& s,
                                        int64_t token) {
  return ring + (token % kRing) * (s.key_dim + kColumns);
}

// Columns of the block that exist.
__device__ __forceinline__ int BlockColumns(const Shape& s) {
  return min(kColumns, s.value_dim - static_cast<int>(blockIdx.x) * kColumns);
}

// Starts the copy of the pending entries, each by a warp; CopyAsyncWait and
// a barrier end it.
__device__ void StartRing(float* ring, const Shape& s,
                          const LinearPending& pending, const Shared& to) {
  const int keys = s.key_dim / 4;
  const int values = BlockColumns(s) / 4;
  for (int e = threadIdx.x / 32; e < pending.count; e += blockDim.x / 32) {
    const float* entry = Entry(ring, s, pending.first + e);
    for (int i = threadIdx.x % 32; i < keys + values; i += 32) {
      if (i < keys) {
        CopyAsync16(SharedAddress(to.k + e * s.key_dim + 4 * i), entry + 4 * i);
      } else {
        CopyAsync16(SharedAddress(to.v + e * kColumns + 4 * (i - keys)),
                    entry + s.key_dim + 4 * (i - keys));
      }
    }
  }
}

// Stores entry e, that of `token`.
__device__ __forceinline__ void StoreEntry(float* ring, const Shape& s, int e,
                                           int64_t token, const Shared& from) {
  float* entry = Entry(ring, s, token);
  const int columns = BlockColumns(s);
  for (int i = threadIdx.x; i < s.key_dim; i += blockDim.x) {
    entry[i] = from.k[e * s.key_dim + i];
  }
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    entry[s.key_dim + i] = from.v[e * kColumns + i];
  }
}

// λ^(n−e) (q̃ · k̃_e) for e up to n: a warp has every warps-th, two at a time.
__device__ __forceinline__ void WeighRing(const Shape& s, int n,
                                          const Shared& sh) {
  const int warps = blockDim.x / 32;
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e <= n; e += 2 * warps) {
    const int other = min(e + warps, n);
    float dot = 0.0f;
    float other_dot = 0.0f;
    for (int i = lane; i < s.key_dim; i += 32) {
      const float q = sh.q[i];
      dot = fmaf(q, sh.k[e * s.key_dim + i], dot);
      other_dot = fmaf(q, sh.k[other * s.key_dim + i], other_dot);
    }
    dot = LaneSum(dot);
    other_dot = LaneSum(other_dot);
    if (lane == 0) sh.weight[e] = sh.power[n - e] * dot;
    if (lane == 0 && e + warps <= n) {
      sh.weight[other] = sh.power[n - other] * other_dot;
    }
  }
}

__device__ __forceinline__ void MakePowers(float decay, float* power) {
  for (int i = threadIdx.x; i <= kRing; i += blockDim.x) {
    float x = 1.0f;
    for (int j = 0; j < i; ++j) x *= decay;
    power[i] = x;
  }
}

// S ← λ^m S + Σ_e λ^(m−1−e) k̃_e ṽ_eᵀ over m entries.
__device__ void FoldTile(const Shared& ring, int m, const Shape& s,
                         Tile* tile) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    tile->x[i] = Scaled(ring.power[m], tile->x[i]);
  }
#pragma unroll 1
  for (int e = 0; e < m; ++e) {
    const float4 value = Scaled(ring.power[m - 1 - e],
                                Four(ring.v + e * kColumns + tile->column));
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      if (first >= tile->rows) break;
      const float4 key = Four(ring.k + e * s.key_dim + tile->row + first);
      AddScaled(key.x, value, &tile->x[first]);
      AddScaled(key.y, value, &tile->x[first + 1]);
      AddScaled(key.z, value, &tile->x[first + 2]);
      AddScaled(key.w, value, &tile->x[first + 3]);
    }
  }
}

// Scᵀ q̃ of a warp's rows, into its row of `partial`.
__device__ __forceinline__ void MultiplyTile(const Tile& tile, const float* q,
                                             float* partial) {
  float4 sum = {};
#pragma unroll
  for (int first = 0; first < kRows; first += 4) {
    if (first >= tile.rows) break;
    const float4 query = Four(q + tile.row + first);
    AddScaled(query.x, tile.x[first], &sum);
    AddScaled(query.y, tile.x[first + 1], &sum);
    AddScaled(query.z, tile.x[first + 2], &sum);
    AddScaled(query.w, tile.x[first + 3], &sum);
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, offset);
  }
  if (threadIdx.x % 32 < kLanes) {
    *reinterpret_cast<float4*>(partial + threadIdx.x / 32 * kColumns +
                               tile.column) = sum;
  }
}

__global__ void __launch_bounds__(kBoundThreads, 1)
    deferred_kernel(const __grid_constant__ LinearDeferredParams params,
                    const __grid_constant__ Shape s, bool early) {
  LaunchDependents();
  const LinearAttentionParams& p = params.of;
  extern __shared__ __align__(16) float shared[];
  __shared__ SoftmaxTerms terms[3];
  const int warps = blockDim.x / 32;
  const int warp = threadIdx.x / 32;
  const Shared sh(shared, s, warps);
  const int sequence = blockIdx.z;
  const int head = blockIdx.y;
  const int columns = BlockColumns(s);
  if (!early) WaitForPrevious();
  // All of these in flight at once.
  const int64_t slot = LoadNow(p.slots + sequence);
  const int64_t begin = LoadNow(p.query_start + sequence);
  const int64_t end = LoadNow(p.query_start + sequence + 1);
  int64_t position = LoadNow(params.positions + sequence);
  const int64_t prompt_end = LoadNow(params.prompt_ends + sequence);
  float* const out =
      p.out + int64_t{head} * s.value_dim + blockIdx.x * kColumns;
  if (slot == 0 || begin >= end) {
    if (early) WaitForPrevious();
    for (int64_t row = begin; row < end; ++row) {
      for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        out[row * p.out_stride + c] = 0.0f;
      }
    }
    return;
  }
  const LinearPending pending = LinearPendingAt(position, prompt_end);
  Tile tile(
      p.states + slot * p.slot_stride + int64_t{head} * s.key_dim * s.value_dim,
      s);
  float* const ring = BlockRing(params, s, slot, head);
  tile.Load();
  StartRing(ring, s, pending, sh);
  MakePowers(p.decay[head], sh.power);
  if (early) WaitForPrevious();
  const bool softmax = p.q_activation == Activation::kSoftmax ||
                       p.k_activation == Activation::kSoftmax ||
                       p.v_activation == Activation::kSoftmax;

  int n = pending.count;  // the token's own entry is the n-th
  bool folded = false;
  for (int64_t row = begin; row < end; ++row, ++position) {
    const float* q_row = p.q + row * p.stride + int64_t{head} * s.head_dim;
    const float* k_row = p.k + row * p.stride + int64_t{head} * s.head_dim;
    const float* v_row = p.v + row * p.v_stride + int64_t{head} * s.value_dim;
    if (softmax) {
      for (int which = warp; which < 3; which += warps) {
        terms[which] = which == 0   ? WarpSoftmax(q_row, s.head_dim)
                       : which == 1 ? WarpSoftmax(k_row, s.head_dim)
                                    : WarpSoftmax(v_row, s.value_dim);
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < s.head_dim; i += blockDim.x) {
      sh.q_in[i] = Apply(p.q_activation, terms[0], q_row[i]);
      sh.k_in[i] = Apply(p.k_activation, terms[1], k_row[i]);
    }
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      sh.v[n * kColumns + c] =
          Apply(p.v_activation, terms[2], v_row[blockIdx.x * kColumns + c]);
    }
    __syncthreads();
    const float* cos = p.cos + row * s.angles;
    const float* sin = p.sin + row * s.angles;
    for (int i = threadIdx.x; i < s.key_dim; i += blockDim.x) {
      sh.q[i] = Encode(p.position, sh.q_in, i, s.head_dim, cos, sin);
      sh.k[n * s.key_dim + i] =
          Encode(p.position, sh.k_in, i, s.head_dim, cos, sin);
    }
    CopyAsyncWait();
    __syncthreads();
    // Now, so that the kernel does not end with it.
    const bool fold = (position + 1) % kRing == 0;
    if (!fold) StoreEntry(ring, s, n, position, sh);
    WeighRing(s, n, sh);
    MultiplyTile(tile, sh.q, sh.partial);
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      float total = 0.0f;
      for (int w = 0; w < warps; ++w) total += sh.partial[w * kColumns + c];
      total *= sh.power[n + 1];
#pragma unroll
      for (int e = 0; e < kRing; ++e) {
        if (e > n) break;
        total = fmaf(sh.weight[e], sh.v[e * kColumns + c], total);
      }
      out[row * p.out_stride + c] = total;
    }
    ++n;
    if (fold) {
      FoldTile(sh, n, s, &tile);
      folded = true;
      n = 0;
      __syncthreads();  // before the next token's ṽ takes the first entry
    }
  }
  if (folded) tile.Store();
}

__global__ void __launch_bounds__(kBoundThreads, 1)
    fold_kernel(const __grid_constant__ LinearDeferredParams params,
                const __grid_constant__ Shape s) {
  LaunchDependents();
  const LinearAttentionParams& p = params.of;
  extern __shared__ __align__(16) float shared[];
  const Shared sh(shared, s, blockDim.x / 32);
  const int sequence = blockIdx.z;
  const int head = blockIdx.y;
  WaitForPrevious();
  const int64_t slot = p.slots[sequence];
  const LinearPending pending =
      LinearPendingAt(params.positions[sequence], params.prompt_ends[sequence]);
  if (slot == 0 || pending.count == 0) return;
  Tile tile(
      p.states + slot * p.slot_stride + int64_t{head} * s.key_dim * s.value_dim,
      s);
  tile.Load();
  StartRing(BlockRing(params, s, slot, head), s, pending, sh);
  MakePowers(p.decay[head], sh.power);
  CopyAsyncWait();
  __syncthreads();
  FoldTile(sh, pending.count, s, &tile);
  tile.Store();
}

bool Valid(const LinearDeferredParams& params, int64_t key_dim) {
  const LinearAttentionParams& p = params.of;
  return p.num_heads >= 1 && p.num_heads <= 65535 && p.sequences >= 0 &&
         p.sequences <= 65535 && p.whole == nullptr &&
         LinearDeferredDoes(key_dim, p.value_dim) &&
         (p.position != LrpeType::kRotate || p.head_dim % 2 == 0) &&
         p.slot_stride % 4 == 0 && p.states != nullptr && IsAligned(p.states) &&
         params.rings != nullptr && IsAligned(params.rings) &&
         p.slots != nullptr && p.decay != nullptr &&
         params.positions != nullptr && params.prompt_ends != nullptr;
}

// Whether the rows can be read and written.
bool HasRows(const LinearAttentionParams& p) {
  return p.q != nullptr && p.k != nullptr && p.v != nullptr &&
         p.out != nullptr && p.query_start != nullptr &&
         (p.position == LrpeType::kNone ||
          (p.cos != nullptr && p.sin != nullptr));
}

struct LaunchPlan {
  explicit LaunchPlan(const LinearDeferredParams& params)
      : shape{static_cast<int>(params.of.head_dim),
              static_cast<int>(
                  LrpeOutputDim(params.of.position, params.of.head_dim)),
              static_cast<int>(params.of.value_dim),
              static_cast<int>(
                  LrpeAngles(params.of.position, params.of.head_dim))},
        warps((shape.key_dim + kLinearRingRows - 1) / kLinearRingRows),
        grid(static_cast<unsigned>(LinearRingTiles(params.of.value_dim)),
             static_cast<unsigned>(params.of.num_heads),
             static_cast<unsigned>(params.of.sequences)),
        bytes(Shared::Floats(shape, warps) * sizeof(float)) {}

  Shape shape;
  int warps;
  dim3 grid;
  size_t bytes;
};

}  // namespace

cudaError_t LaunchLinearDeferred(const LinearDeferredParams& params, bool early,
                                 cudaStream_t stream) {
  const LaunchPlan plan(params);
  if (!Valid(params, plan.shape.key_dim)) return cudaErrorInvalidValue;
  if (params.of.sequences == 0) return cudaSuccess;
  if (!HasRows(params.of)) return cudaErrorInvalidValue;
  return LaunchDependent(deferred_kernel, plan.grid, 32 * plan.warps,
                         plan.bytes, stream, params, plan.shape, early);
}

cudaError_t LaunchLinearFold(const LinearDeferredParams& params,
                             cudaStream_t stream) {
  const LaunchPlan plan(params);
  if (!Valid(params, plan.shape.key_dim)) return cudaErrorInvalidValue;
  if (params.of.sequences == 0) return cudaSuccess;
  return LaunchDependent(fold_kernel, plan.grid, 32 * plan.warps, plan.bytes,
                         stream, params, plan.shape);
}

}  // namespace recurve
