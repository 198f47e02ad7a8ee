// What a prefill reads many times, made once: queries, and keys and values of
// heads where the rank is more than 1.
#include <algorithm>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_prefill_args.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// ---- queries ----

// A_q and B_q of a token are [Rq, H] and [Rq, D]: products of 16 x 16 x 8 on
// the tensor cores, where a factor is the sum of two bfloat16 terms (16 bits;
// the product of the two small ones is left out).

constexpr int kTokens = 4;  // of a block
constexpr int kTerms = 2;

// Shared memory of a block. Rows are 16 bytes longer than they have to be, so
// that eight of them lie in different banks.
template <int kWidth>
struct QuerySizes {
  static constexpr int kHeadTiles = kWidth == 256 ? 1 : 2;  // of 16, at a time
  static constexpr int kRow = kWidth + 8;          // elements of B_q's rows
  static constexpr int kOutRow = 8 * kWidth + 16;  // bytes of a head's results
  int ranks;                                       // rounded up to 16
  int heads;                                       // of a row of A_q's
  __host__ __device__ QuerySizes(int q_rank, int head_count)
      : ranks((q_rank + 15) / 16 * 16),
        heads((head_count + 15) / 16 * 16 + 8) {}
  // Elements from one term, or token, to the next.
  __host__ __device__ int b_plane() const { return ranks * kRow; }
  __host__ __device__ int a_plane() const { return ranks * heads; }
  __host__ __device__ int bytes() const {
    return 2 * kTerms * kTokens * (a_plane() + b_plane()) +
           8 * kHeadTiles * kOutRow;
  }
};

__device__ __forceinline__ float2 Rotated(float x1, float x2, float c,
                                          float s) {
  return {__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x2, s)),
          __fadd_rn(__fmul_rn(x1, s), __fmul_rn(x2, c))};
}

// Both terms of x, `plane` elements apart.
__device__ __forceinline__ void StoreTerms(__nv_bfloat16* to, int plane,
                                           float x) {
  const __nv_bfloat16 high = __float2bfloat16_rn(x);
  to[0] = high;
  to[plane] = __float2bfloat16_rn(x - __bfloat162float(high));
}

// The factors of 4 tokens into shared memory, B_q with its position: a warp
// takes ranks of one token. What does not exist is zero.
template <int kWidth>
__device__ __forceinline__ void StageFactors(const TpaPrefillArgs& args,
                                             const QuerySizes<kWidth>& sizes,
                                             int begin, int count,
                                             __nv_bfloat16* b_q,
                                             __nv_bfloat16* a_q) {
  constexpr int kLanePairs = kWidth / 64;
  constexpr int kLaneHeads = 4;
  constexpr int kBatch = 4;  // ranks whose loads are under way together
  constexpr int kWarps = kThreads / 32 / kTokens;  // of a token
  const TpaPrefillParams& p = args.p;
  const int dim = static_cast<int>(p.shape.head_dim);
  const int half = dim / 2;
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const int num_heads = static_cast<int>(p.shape.num_heads);
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
  for (int first = warp / kTokens; first < sizes.ranks;
       first += kBatch * kWarps) {
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
      const int r = first + i * kWarps;  // ranks is a multiple of 8
      __nv_bfloat16* to = b_q + token * sizes.b_plane() + r * sizes.kRow;
#pragma unroll
      for (int j = 0; j < kLanePairs; ++j) {
        const int k = lane + 32 * j;
        float2 z = {x1[i][j], x2[i][j]};
        if (rotate) z = Rotated(z.x, z.y, c[j], s[j]);
        // Pairs beyond the half fill what is left of the row.
        const int plane = kTokens * sizes.b_plane();
        StoreTerms(to + (k < half ? k : 2 * k), plane, z.x);
        StoreTerms(to + (k < half ? half + k : 2 * k + 1), plane, z.y);
      }
#pragma unroll
      for (int j = 0; j < kLaneHeads; ++j) {
        const int h = lane + 32 * j;
        if (h < sizes.heads) {
          StoreTerms(a_q + token * sizes.a_plane() + r * sizes.heads + h,
                     kTokens * sizes.a_plane(), y[i][j]);
        }
      }
    }
  }
}

// Eight features of a whole query, with its position.
__device__ __forceinline__ void LoadWholeQuery(const TpaPrefillParams& p,
                                               int64_t token, int head, int d0,
                                               float (&x)[8]) {
  const int dim = static_cast<int>(p.shape.head_dim);
  const int half = dim / 2;
  const float* b = p.b_q + token * p.stride + int64_t{head} * dim;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int d = d0 + i;
    if (d >= dim) continue;
    x[i] = b[d];
    if (p.position == LrpeType::kRotate) {
      const int k = d < half ? d : d - half;
      const float2 y = Rotated(b[k], b[half + k], p.cos[token * half + k],
                               p.sin[token * half + k]);
      x[i] = d < half ? y.x : y.y;
    }
  }
}

// q[h] = (1/Rq) Σ_r A_q[r,h] · B_q[r] for 4 tokens, as the tensor cores take
// them: rotated, times D^-1/2 / R and log2(e), and rounded. Queries of a tile
// that do not exist are zero.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    tpa_prefill_queries(const __grid_constant__ TpaPrefillArgs args) {
  using Sizes = QuerySizes<kWidth>;
  extern __shared__ __align__(16) char staging[];
  LaunchDependents();
  const TpaPrefillParams& p = args.p;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    args.Scheduled<TpaPrefillHeader>(0)->next = 0;
  }
  const int blocks_per_tile = args.query_tile / kTokens;
  const int slot = static_cast<int>(blockIdx.x) / blocks_per_tile;
  const TpaPrefillTile tile =
      args.Scheduled<TpaPrefillTile>(args.parts.by_slot)[slot];
  if (slot >= args.header().query_tiles) return;
  const int in_tile = static_cast<int>(blockIdx.x) % blocks_per_tile * kTokens;
  const int begin = tile.token + in_tile;
  const int count = max(0, min(kTokens, tile.queries - in_tile));
  const int q_rank = static_cast<int>(p.shape.q_rank);
  const float scale =
      1.4426950408889634f /
      (sqrtf(static_cast<float>(p.shape.head_dim)) *
       static_cast<float>(max(q_rank, 1) * static_cast<int>(p.shape.kv_rank)));
  constexpr int kOctets = kWidth / 8;
  // Of the first of the block's tokens, in scratch memory; octets are 1 KB.
  char* const out = args.Queries(0, slot) + 2 * (in_tile / 64 * 64 * kWidth) +
                    in_tile % 64 * 16;

  if (q_rank == 0) {  // whole queries
    for (int i = threadIdx.x; i < args.heads * kOctets * kTokens;
         i += kThreads) {
      const int token = i % kTokens;
      const int octet = i / kTokens % kOctets;
      const int head = i / (kTokens * kOctets);
      float x[8] = {};
      if (token < count) {
        LoadWholeQuery(p, begin + token, args.first_head + head, 8 * octet, x);
      }
      *reinterpret_cast<uint4*>(out + head * args.query_bytes + 1024 * octet +
                                16 * token) = {
          Half<T>::Pack(x[0] * scale, x[1] * scale),
          Half<T>::Pack(x[2] * scale, x[3] * scale),
          Half<T>::Pack(x[4] * scale, x[5] * scale),
          Half<T>::Pack(x[6] * scale, x[7] * scale)};
    }
    return;
  }

  const Sizes sizes(q_rank, args.heads);
  const int a_plane = sizes.a_plane();
  const int b_plane = sizes.b_plane();
  __nv_bfloat16* const b_q = reinterpret_cast<__nv_bfloat16*>(staging);
  __nv_bfloat16* const a_q = b_q + kTerms * kTokens * b_plane;
  char* const results =
      reinterpret_cast<char*>(a_q + kTerms * kTokens * a_plane);
  StageFactors<kWidth>(args, sizes, begin, count, b_q, a_q);
  __syncthreads();

  // A warp has one token and half of the features.
  constexpr int kTiles = kOctets / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int token = warp % kTokens;
  const int first_octet = warp / kTokens * kTiles;
  const uint32_t b_from =
      SharedAddress(b_q + token * b_plane + lane % 16 * Sizes::kRow +
                    lane / 16 * 8 + 8 * first_octet);
  const uint32_t a_from = SharedAddress(
      a_q + token * a_plane + (lane / 16 * 8 + lane % 8) * sizes.heads +
      lane / 8 % 2 * 8);
#pragma unroll 1
  for (int head = 0; head < args.heads; head += 16 * Sizes::kHeadTiles) {
    float c[Sizes::kHeadTiles][kTiles][4] = {};
#pragma unroll 1
    for (int r = 0; r < sizes.ranks; r += 16) {
      uint32_t a[Sizes::kHeadTiles][kTerms][4];
#pragma unroll
      for (int m = 0; m < Sizes::kHeadTiles; ++m) {
        // The last tile may be alone.
        const int from = min(head + 16 * m, sizes.heads - 24);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          LoadMatricesTransposed(
              a[m][term],
              a_from + 2 * (term * kTokens * a_plane + r * sizes.heads + from));
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        uint32_t b[kTerms][4];
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          LoadMatricesTransposed(b[term],
                                 b_from + 2 * (term * kTokens * b_plane +
                                               r * Sizes::kRow + 8 * n));
        }
#pragma unroll
        for (int m = 0; m < Sizes::kHeadTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float(&sum)[4] = c[m][n + i];
            using Product = Half<__nv_bfloat16>;
            Product::Mma(sum, a[m][1], b[0][2 * i], b[0][2 * i + 1]);
            Product::Mma(sum, a[m][0], b[1][2 * i], b[1][2 * i + 1]);
            Product::Mma(sum, a[m][0], b[0][2 * i], b[0][2 * i + 1]);
          }
        }
      }
    }
    // By way of shared memory, so that tokens are written together; eight heads
    // of each tile at a time.
    const int heads = args.heads - head;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
#pragma unroll
      for (int m = 0; m < Sizes::kHeadTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          char* to = results + (8 * m + lane / 4) * Sizes::kOutRow +
                     64 * (first_octet + n) + 16 * token + 4 * (lane % 4);
          *reinterpret_cast<uint32_t*>(to) =
              Half<T>::Pack(c[m][n][2 * i] * scale, c[m][n][2 * i + 1] * scale);
        }
      }
      __syncthreads();
      for (int k = threadIdx.x; k < 8 * Sizes::kHeadTiles * kOctets * kTokens;
           k += kThreads) {
        const int to_token = k % kTokens;
        const int octet = k / kTokens % kOctets;
        const int row = k / (kTokens * kOctets);
        const int h = row / 8 * 16 + 8 * i + row % 8;
        if (h >= heads) continue;
        *reinterpret_cast<uint4*>(out + (head + h) * args.query_bytes +
                                  1024 * octet + 16 * to_token) =
            *reinterpret_cast<const uint4*>(results + row * Sizes::kOutRow +
                                            64 * octet + 16 * to_token);
      }
    }
  }
}

// ---- keys and values ----

constexpr int kThreadOctets = 2;  // of features that a thread has
constexpr int kMaxRank = 4;

// K_h = Σ_r A_k[r,h] · B_k[r] and V_h likewise, of the heads of the group, for
// a key tile: blockIdx.x is the tile, blockIdx.y some of its features. (Queries
// and outputs take the 1/R.) Zeros where no token is, and beyond D and E.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    tpa_prefill_expand(const __grid_constant__ TpaPrefillArgs args) {
  LaunchDependents();
  const TpaPrefillParams& p = args.p;
  const int tile = static_cast<int>(blockIdx.x);
  // Runs beside the kernel before, which it needs nothing of; but whoever waits
  // for this one waits for both.
  const TpaPrefillKeyTile at =
      args.Scheduled<TpaPrefillKeyTile>(args.parts.keys)[tile];
  if (tile >= args.header().key_tiles) {
    WaitForPrevious();
    return;
  }
  const int token = static_cast<int>(threadIdx.x) % args.key_tile;
  const int position = at.index * args.key_tile + token;
  const int lanes = kThreads / args.key_tile;
  const int lane = static_cast<int>(threadIdx.x) / args.key_tile;
  const int octets = args.width / 8;
  // Octets of this thread: of keys, then of values.
  const int first =
      (static_cast<int>(blockIdx.y) * lanes + lane) * kThreadOctets;
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
#pragma unroll 1
  for (int head = 0; head < args.heads; ++head) {
    float a[kMaxRank];
#pragma unroll
    for (int r = 0; r < kMaxRank; ++r) {
      const int h = args.first_head + head;
      a[r] = r < kv_rank && exists
                 ? Half<T>::To(page[values ? args.layout.AV(m, r, h)
                                           : args.layout.AK(m, r, h)])
                 : 0.0f;
    }
    char* to = args.Context(head, tile) + place;
#pragma unroll
    for (int i = 0; i < kThreadOctets; ++i) {
      float x[8] = {};
#pragma unroll
      for (int r = 0; r < kMaxRank; ++r) {
        if (r >= kv_rank) break;
        const uint32_t words[4] = {b[r][i].x, b[r][i].y, b[r][i].z, b[r][i].w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          x[2 * k] = __fmaf_rn(a[r], Half<T>::Low(words[k]), x[2 * k]);
          x[2 * k + 1] = __fmaf_rn(a[r], Half<T>::High(words[k]), x[2 * k + 1]);
        }
      }
      const uint4 out = {Half<T>::Pack(x[0], x[1]), Half<T>::Pack(x[2], x[3]),
                         Half<T>::Pack(x[4], x[5]), Half<T>::Pack(x[6], x[7])};
      *reinterpret_cast<uint4*>(to + 16 * (first_octet + i) * stride) = out;
    }
  }
  WaitForPrevious();
}

template <typename T, int kWidth>
cudaError_t Launch(const TpaPrefillArgs& args, const TpaPrefillPlan& plan,
                   cudaStream_t stream) {
  const int q_rank = static_cast<int>(args.p.shape.q_rank);
  const int staging =
      q_rank == 0 ? 0 : QuerySizes<kWidth>(q_rank, args.heads).bytes();
  const auto queries = tpa_prefill_queries<T, kWidth>;
  cudaError_t error = cudaFuncSetAttribute(
      queries, cudaFuncAttributeMaxDynamicSharedMemorySize, staging);
  if (error != cudaSuccess) return error;
  const int blocks = plan.query_tiles * (plan.query_tile / kTokens);
  queries<<<blocks, kThreads, staging, stream>>>(args);
  error = cudaGetLastError();
  if (error != cudaSuccess || plan.form != TpaPrefillForm::kExpanded) {
    return error;
  }
  const int octets = 2 * kWidth / 8;
  const int block_octets = kThreads / plan.key_tile * kThreadOctets;
  return LaunchTpaPrefillNext(tpa_prefill_expand<T>,
                              dim3(plan.key_tiles, octets / block_octets),
                              kThreads, 0, args, stream);
}

template <typename T>
cudaError_t LaunchWidth(const TpaPrefillArgs& args, const TpaPrefillPlan& plan,
                        cudaStream_t stream) {
  switch (plan.width) {
    case 64:
      return Launch<T, 64>(args, plan, stream);
    case 128:
      return Launch<T, 128>(args, plan, stream);
    case 256:
      return Launch<T, 256>(args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchTpaPrefillPrepare(const TpaPrefillArgs& args,
                                    const TpaPrefillPlan& plan,
                                    cudaStream_t stream) {
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchWidth<__nv_bfloat16>(args, plan, stream)
             : LaunchWidth<__half>(args, plan, stream);
}

}  // namespace recurve
