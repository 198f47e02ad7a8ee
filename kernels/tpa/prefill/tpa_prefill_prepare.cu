// Prepare step of TPA prefill, one launch: blocks of 4 tokens form queries,
// others expand K_h and V_h from the pages, a key tile and some heads and
// features each.
// Shapes: A_q [T, Rq, H], B_q [T, Rq, D] float32; pages of rank R; queries
// [H, T, width], K_h, V_h [H, L, width] 16-bit.
// Floor in bytes: queries 4 · T · Rq · (H + D) + 2 · T · H · width; keys and
// values 2 · L · R · (2 H + D + E) + 4 · L · H · width.
#include <algorithm>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/tpa/prefill/tpa_prefill_args.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// ---- queries ----

constexpr int kTokens = 4;  // of a block
constexpr int kHeads = 8;   // of a thread at a time

// Floats between tokens of staged A_q and B_q: rows of neighbouring tokens
// begin in different banks.
__host__ __device__ constexpr int AStride(int heads) {
  return (heads + kHeads - 1) / kHeads * kHeads + 4;
}
__host__ __device__ constexpr int BStride(int width) { return width + 8; }
// Layout of B_q: eight neighbouring features are two fours, half a row apart,
// to avoid bank conflicts.
__device__ __forceinline__ int Place(int d, int width) {
  return (d & 4) / 4 * (width / 2) + d / 8 * 4 + (d & 3);
}

__device__ __forceinline__ float2 Rotated(float x1, float x2, float c,
                                          float s) {
  return {__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s)),
          __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c))};
}

// Stages the factors of 4 tokens in shared memory, B_q with its position: a
// warp takes ranks of one token. Missing elements are zero.
template <int kWidth>
__device__ __forceinline__ void StageFactors(const TpaPrefillArgs& args,
                                             int begin, int count, float* b_q,
                                             float* a_q) {
  constexpr int kLanePairs = kWidth / 64;
  constexpr int kLaneHeads = 4;
  constexpr int kBatch = 4;  // ranks whose loads are in flight together
  constexpr int kWarps = kThreads / 32 / kTokens;  // of a token
  const TpaPrefillParams& p = args.p;
  const int dim = static_cast<int>(p.shape.head_dim);
  const int half = dim / 2;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const int num_heads = static_cast<int>(p.shape.num_heads);
  const int a_stride = AStride(args.heads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int token = warp % kTokens;
  const bool exists = token < count;
  const bool rotate = p.position == LrpeType::kRotate;
  const float* b = p.b_q + (begin + token) * p.stride;
  const float* a = p.a_q + (begin + token) * p.stride + args.first_head;
  float c[kLanePairs], s[kLanePairs];
#pragma unroll
  for (int j = 0; j < kLanePairs; ++j) {
    const int k = lane + 32 * j;
    const int64_t angle = int64_t{begin + token} * half + k;
    const bool turns = rotate && exists && k < half;
    c[j] = turns ? __ldg(p.cos + angle) : 1.0f;
    s[j] = turns ? __ldg(p.sin + angle) : 0.0f;
  }
#pragma unroll 1
  for (int first = warp / kTokens; first < q_rank; first += kBatch * kWarps) {
    float x1[kBatch][kLanePairs], x2[kBatch][kLanePairs];
    float y[kBatch][kLaneHeads];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = first + i * kWarps;
      const bool read = exists && r < q_rank;
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        const int k = lane + 32 * j;
        x1[i][j] = read && k < half ? __ldg(b + r * dim + k) : 0.0f;
        x2[i][j] = read && k < half ? __ldg(b + r * dim + half + k) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kLaneHeads; ++j) {
        const int h = lane + 32 * j;
        y[i][j] = read && h < args.heads ? __ldg(a + r * num_heads + h) : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = first + i * kWarps;
      if (r >= q_rank) break;
      float* to = b_q + (r * kTokens + token) * BStride(kWidth);
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        const int k = lane + 32 * j;
        float2 z = {x1[i][j], x2[i][j]};
        if (rotate) z = Rotated(z.x, z.y, c[j], s[j]);
        // Pairs beyond the half fill the rest of the row.
        to[Place(k < half ? k : 2 * k, kWidth)] = z.x;
        to[Place(k < half ? half + k : 2 * k + 1, kWidth)] = z.y;
      }
#pragma unroll
      for (int j = 0; j < kLaneHeads; ++j) {
        const int h = lane + 32 * j;
        if (h < a_stride) a_q[(r * kTokens + token) * a_stride + h] = y[i][j];
      }
    }
  }
}

// q[h] = (1/Rq) Σ_r A_q[r,h] · B_q[r] for 4 tokens, in the tensor cores'
// layout: rotated, times D^-1/2 / R and log2(e), and rounded. Missing queries
// of a tile are zero. `block`: which tokens.
template <typename T, int kWidth>
__device__ __forceinline__ void FormQueries(const TpaPrefillArgs& args,
                                            int block, float* staging) {
  const TpaPrefillParams& p = args.p;
  const int blocks_per_tile = args.query_tile / kTokens;
  const int slot = block / blocks_per_tile;
  const TpaPrefillTile tile =
      args.Scheduled<TpaPrefillTile>(args.parts.by_slot)[slot];
  if (slot >= args.header().query_tiles) return;
  const int in_tile = block % blocks_per_tile * kTokens;
  const int begin = tile.token + in_tile;
  const int count = max(0, min(kTokens, tile.queries - in_tile));
  const int dim = static_cast<int>(p.shape.head_dim);
  const int half = dim / 2;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  constexpr int b_stride = BStride(kWidth);
  const int a_stride = AStride(args.heads);
  const bool rotate = p.position == LrpeType::kRotate;
  float* const b_q = staging;
  float* const a_q = staging + q_rank * kTokens * b_stride;
  if (q_rank > 0) {
    StageFactors<kWidth>(args, begin, count, b_q, a_q);
    __syncthreads();
  }

  const float scale =
      1.4426950408889634f /
      (sqrtf(static_cast<float>(dim)) *
       static_cast<float>(max(q_rank, 1) * static_cast<int>(p.shape.kv_rank)));
  constexpr int octets = kWidth / 8;
  constexpr int pairs = kTokens * octets;
  const int pair = static_cast<int>(threadIdx.x) % pairs;
  const int token = pair % kTokens;
  const int octet = pair / kTokens;
  const int query = in_tile + token;
  const int64_t to_offset =
      int64_t{2} * (query / 64 * 64 * kWidth + (octet * 64 + query % 64) * 8);
  const auto store = [&](int head, const float(&x)[8]) {
    const uint4 words = {Half<T>::Pack(x[0] * scale, x[1] * scale),
                         Half<T>::Pack(x[2] * scale, x[3] * scale),
                         Half<T>::Pack(x[4] * scale, x[5] * scale),
                         Half<T>::Pack(x[6] * scale, x[7] * scale)};
    *reinterpret_cast<uint4*>(args.Queries(head, slot) + to_offset) = words;
  };
  constexpr int step = kThreads / pairs;

  if (q_rank == 0) {  // whole queries
    for (int head = static_cast<int>(threadIdx.x) / pairs; head < args.heads;
         head += step) {
      float x[8];
      const float* b = p.b_q + (begin + token) * p.stride +
                       int64_t{args.first_head + head} * dim;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int d = 8 * octet + i;
        x[i] = 0.0f;
        if (token >= count || d >= dim) continue;
        x[i] = b[d];
        if (rotate) {
          const int k = d < half ? d : d - half;
          const int64_t angle = int64_t{begin + token} * half + k;
          const float2 y =
              Rotated(b[k], b[half + k], p.cos[angle], p.sin[angle]);
          x[i] = d < half ? y.x : y.y;
        }
      }
      store(head, x);
    }
    return;
  }

  for (int head = static_cast<int>(threadIdx.x) / pairs * kHeads;
       head < args.heads; head += step * kHeads) {
    float sum[kHeads][8] = {};
#pragma unroll 2
    for (int r = 0; r < q_rank; ++r) {
      const float* row = b_q + (r * kTokens + token) * b_stride;
      const float4 low = reinterpret_cast<const float4*>(row)[octet];
      const float4 high = reinterpret_cast<const float4*>(row)[octets + octet];
      const float* factors = a_q + (r * kTokens + token) * a_stride + head;
      const float4 a_low = *reinterpret_cast<const float4*>(factors);
      const float4 a_high = *reinterpret_cast<const float4*>(factors + 4);
      const float a[kHeads] = {a_low.x,  a_low.y,  a_low.z,  a_low.w,
                               a_high.x, a_high.y, a_high.z, a_high.w};
      const float b[8] = {low.x,  low.y,  low.z,  low.w,
                          high.x, high.y, high.z, high.w};
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sum[h][i] = __fmaf_rn(a[h], b[i], sum[h][i]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (head + h < args.heads) store(head + h, sum[h]);
    }
  }
}

// ---- keys and values ----

constexpr int kThreadOctets = 2;  // of features that a thread has
constexpr int kMaxRank = 4;
constexpr int kExpandHeads = 4;  // whose A a thread loads together
// Target of blocks a multiprocessor: if tiles are few, a block has few heads,
// as each batch of heads is a round trip to memory. Not always, since each
// block reads B again.
constexpr int kExpandBlocks = 4;

// How the expanding blocks share keys and values: each has a key tile, some of
// its features, and some heads.
struct ExpandGrid {
  int tiles;
  int features;  // parts
  int head_cuts;
  int heads;  // of a block
};

// K_h = Σ_r A_k[r,h] · B_k[r] and V_h likewise, of the heads of the group.
// (Queries and outputs take the 1/R.) Zeros for missing tokens, and beyond D
// and E.
template <typename T>
__device__ __forceinline__ void ExpandContext(const TpaPrefillArgs& args,
                                              const ExpandGrid& grid,
                                              int block) {
  const TpaPrefillParams& p = args.p;
  const int tile = block % grid.tiles;
  const TpaPrefillKeyTile at =
      args.Scheduled<TpaPrefillKeyTile>(args.parts.keys)[tile];
  if (tile >= args.header().key_tiles) return;
  const int token = static_cast<int>(threadIdx.x) % args.key_tile;
  const int position = at.index * args.key_tile + token;
  const int lanes = kThreads / args.key_tile;
  const int lane = static_cast<int>(threadIdx.x) / args.key_tile;
  const int octets = args.width / 8;
  // Octets of this thread: of keys, then of values.
  const int first =
      (block / grid.tiles % grid.features * lanes + lane) * kThreadOctets;
  const bool values = first >= octets;
  const int first_octet = values ? first - octets : first;
  const int used = static_cast<int>(
      (values ? args.layout.b_v_width : args.layout.b_k_width) / 8);
  const int kv_rank = static_cast<int>(p.shape.kv_rank);
  const bool exists = position < at.length;
  const int m = position % static_cast<int>(kTpaPageTokens);
  const T* page = nullptr;
  if (exists) {
    page = reinterpret_cast<const T*>(args.PageAt(
        args.PageTable(at.row)[position / static_cast<int>(kTpaPageTokens)]));
  }
  uint4 b[kMaxRank][kThreadOctets];
#pragma unroll
  for (int r = 0; r < kMaxRank; ++r) {
#pragma unroll
    for (int i = 0; i < kThreadOctets; ++i) {
      b[r][i] = {0, 0, 0, 0};
      if (r < kv_rank && exists && first_octet + i < used) {
        const int d = 8 * (first_octet + i);
        b[r][i] = *reinterpret_cast<const uint4*>(
            page +
            (values ? args.layout.BV(m, r, d) : args.layout.BK(m, r, d)));
      }
    }
  }
  const int tile_bytes = 2 * args.key_tile * args.width;
  const int stride = values ? 64 : args.key_tile;  // tokens between octets
  const int place =
      values ? tile_bytes + token / 64 * 2 * 64 * args.width + token % 64 * 16
             : token * 16;
  const int begin = block / (grid.tiles * grid.features) * grid.heads;
  const int end = min(begin + grid.heads, args.heads);
#pragma unroll 1
  for (int head = begin; head < end; head += kExpandHeads) {
    float a[kExpandHeads][kMaxRank];
#pragma unroll
    for (int j = 0; j < kExpandHeads; ++j) {
#pragma unroll
      for (int r = 0; r < kMaxRank; ++r) {
        const int h = args.first_head + head + j;
        a[j][r] = r < kv_rank && exists && head + j < end
                      ? Half<T>::To(page[values ? args.layout.AV(m, r, h)
                                                : args.layout.AK(m, r, h)])
                      : 0.0f;
      }
    }
#pragma unroll
    for (int j = 0; j < kExpandHeads; ++j) {
      if (head + j >= end) break;
      char* to = args.Context(head + j, tile) + place;
#pragma unroll
      for (int i = 0; i < kThreadOctets; ++i) {
        float x[8] = {};
#pragma unroll
        for (int r = 0; r < kMaxRank; ++r) {
          if (r >= kv_rank) break;
          const uint32_t words[4] = {b[r][i].x, b[r][i].y, b[r][i].z,
                                     b[r][i].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            x[2 * k] = __fmaf_rn(a[j][r], Half<T>::Low(words[k]), x[2 * k]);
            x[2 * k + 1] =
                __fmaf_rn(a[j][r], Half<T>::High(words[k]), x[2 * k + 1]);
          }
        }
        const uint4 out = {Half<T>::Pack(x[0], x[1]), Half<T>::Pack(x[2], x[3]),
                           Half<T>::Pack(x[4], x[5]),
                           Half<T>::Pack(x[6], x[7])};
        *reinterpret_cast<uint4*>(to + 16 * (first_octet + i) * stride) = out;
      }
    }
  }
}

// ---- both ----

// Blocks below `query_blocks` form queries, the others keys and values.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    tpa_prefill_prepare(const __grid_constant__ TpaPrefillArgs args,
                        int query_blocks, ExpandGrid grid) {
  extern __shared__ __align__(16) float staging[];
  // In this order: the next kernel reads writes of the previous one.
  WaitForPrevious();
  LaunchDependents();
  const auto block = static_cast<int>(blockIdx.x);
  if (block == 0 && threadIdx.x == 0) {
    args.Scheduled<TpaPrefillHeader>(0)->next = 0;
  }
  if (block < query_blocks) {
    FormQueries<T, kWidth>(args, block, staging);
  } else {
    ExpandContext<T>(args, grid, block - query_blocks);
  }
}

// Heads a block, of `heads`: enough for about `wanted` blocks, where one for
// all heads gives `blocks`.
int HeadsOfBlock(int heads, int64_t blocks, int64_t wanted) {
  const int64_t batches = (heads + kExpandHeads - 1) / kExpandHeads;
  const int64_t cuts =
      std::clamp<int64_t>((wanted + blocks - 1) / blocks, 1, batches);
  return static_cast<int>((batches + cuts - 1) / cuts) * kExpandHeads;
}

template <typename T, int kWidth>
cudaError_t Launch(const TpaPrefillArgs& args, const TpaPrefillPlan& plan,
                   int multiprocessors, cudaStream_t stream) {
  const int staging = static_cast<int>(4 * kTokens * args.p.shape.q_rank *
                                       (BStride(kWidth) + AStride(args.heads)));
  const int query_blocks = plan.query_tiles * (plan.query_tile / kTokens);
  const int octets = 2 * kWidth / 8;
  ExpandGrid grid = {};
  grid.tiles = plan.key_tiles;
  grid.features = octets / (kThreads / plan.key_tile * kThreadOctets);
  grid.heads = HeadsOfBlock(args.heads, int64_t{grid.tiles} * grid.features,
                            int64_t{kExpandBlocks} * multiprocessors);
  grid.head_cuts = (args.heads + grid.heads - 1) / grid.heads;
  const int64_t blocks =
      query_blocks + int64_t{grid.tiles} * grid.features * grid.head_cuts;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = tpa_prefill_prepare<T, kWidth>;
  const cudaError_t error = AllowSharedMemory(kernel, staging);
  if (error != cudaSuccess) return error;
  return LaunchTpaPrefillNext(kernel, dim3(static_cast<unsigned>(blocks)),
                              kThreads, staging, stream, args, query_blocks,
                              grid);
}

template <typename T>
cudaError_t LaunchWidth(const TpaPrefillArgs& args, const TpaPrefillPlan& plan,
                        int multiprocessors, cudaStream_t stream) {
  switch (plan.width) {
    case 64:
      return Launch<T, 64>(args, plan, multiprocessors, stream);
    case 128:
      return Launch<T, 128>(args, plan, multiprocessors, stream);
    case 256:
      return Launch<T, 256>(args, plan, multiprocessors, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchTpaPrefillPrepare(const TpaPrefillArgs& args,
                                    const TpaPrefillPlan& plan,
                                    int multiprocessors, cudaStream_t stream) {
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchWidth<__nv_bfloat16>(args, plan, multiprocessors, stream)
             : LaunchWidth<__half>(args, plan, multiprocessors, stream);
}

}  // namespace recurve
