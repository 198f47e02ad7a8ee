// First half of the gated delta rule over prompts: factors of each chunk and
// value head that do not depend on the state. A block is one of these. All
// products are on tensor cores: scores; then (I + L)⁻¹ by blocks of 16 tokens,
// whose diagonal is inverted in float32, a warp for 16 columns of W or U, in
// accumulators that are the left factors of later blocks.
// Shapes: q, k [T, Hk, D], v [T, Hv, E]; out an image and U (the plan) a chunk.
// Floor: 16 · T · Hk · D + 4 · T · Hv · E bytes read (rows in bfloat16, q and k
// by each value head); some 73 KB written a chunk and head with one term.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREPARE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREPARE_CUH_

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_solve.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_tiles.cuh"

namespace recurve {
namespace gated_delta {

constexpr int kPrepareThreads = 256;
// Least g. One a head: e^g is 0 there, and sums are exact enough in float64. By
// channel sums are integers of 2⁻²⁰, whose differences are exact, and e^g is
// 3e-14, which is nothing next to the token that it makes room for.
constexpr float kLeastLog = -1000.0f;
constexpr float kLeastChannelLog = -31.0f;
constexpr float kLogUnit = 0x1p-20f;
static_assert(kDeltaChunk * 31 < 2048, "the sum of a chunk fits 31 bits");

struct PrepareShared {
  float2 log[kDeltaChunk];    // γ, where it is one a head, in two terms; then
  float fade[kDeltaChunk];    // e^γ
  float to_end[kDeltaChunk];  // e^(γ_C − γ)
  float beta[kDeltaChunk];
  float diagonal[4][16][17];  // blocks of L
};

template <int kTerms, bool kChannel>
constexpr int PrepareSharedBytes() {
  return DeltaImageBytes(kTerms) + kTerms * kLowerBytes +
         static_cast<int>(sizeof(PrepareShared)) +
         (kChannel ? 4 * kDeltaChunk * kDeltaPrefillDim : 0);
}

// One block's work.
template <typename T, int kTerms, bool kChannel>
class Prepare {
 public:
  __device__ Prepare(const Round& round, int head, ChunkPlace place,
                     char* memory)
      : p_(round.p.of),
        head_(head),
        place_(place),
        speed_(DeltaSpeed(round.p.of.gate, head)),
        image_(memory),
        lower_(memory + DeltaImageBytes(kTerms)),
        sh_(*reinterpret_cast<PrepareShared*>(lower_ + kTerms * kLowerBytes)),
        logs_(reinterpret_cast<int32_t*>(&sh_ + 1)) {}

  // γ and β. By Units.
  __device__ void Gates() {
    const int tid = threadIdx.x;
    if (tid < kDeltaChunk) {
      const T* b = static_cast<const T*>(p_.b) + Row(tid) * p_.b_stride;
      sh_.beta[tid] =
          tid < place_.count ? DeltaBeta(p_.gate, ToFloat(b[head_])) : 0.0f;
    }
    if constexpr (kChannel) {
      if (tid >= kDeltaPrefillDim) return;
      int32_t sum = 0;
      for (int i = 0; i < kDeltaChunk; ++i) {
        if (i < place_.count && tid < p_.head_dim) {
          const int index = head_ * static_cast<int>(p_.head_dim) + tid;
          const T* const a =
              static_cast<const T*>(p_.a) + Row(i) * p_.a_stride + index;
          const float log = Log(ToFloat(*a) + DeltaBias(p_.gate, index));
          if (log != log) poison_ = log;
          sum += static_cast<int32_t>(rintf(log * (1.0f / kLogUnit)));
        }
        logs_[i * kDeltaPrefillDim + tid] = sum;
      }
    } else if (tid < 32) {
      // Two tokens a lane, then a scan over lanes.
      const T* const a =
          static_cast<const T*>(p_.a) + Row(2 * tid) * p_.a_stride + head_;
      const float bias = DeltaBias(p_.gate, head_);
      float raw[2] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (2 * tid + j < place_.count) raw[j] = ToFloat(a[j * p_.a_stride]);
      }
      const double first = 2 * tid < place_.count ? Log(raw[0] + bias) : 0.0;
      double sum = first;
      if (2 * tid + 1 < place_.count) sum += Log(raw[1] + bias);
      const double own = sum;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const double before = __shfl_up_sync(0xffffffffu, sum, offset);
        if (tid >= offset) sum += before;
      }
      const double all = __shfl_sync(0xffffffffu, sum, 31);
      const double logs[] = {sum - own + first, sum};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float high = static_cast<float>(logs[j]);
        sh_.log[2 * tid + j] =
            make_float2(high, static_cast<float>(logs[j] - high));
        sh_.fade[2 * tid + j] = expf(static_cast<float>(logs[j]));
        sh_.to_end[2 * tid + j] = expf(static_cast<float>(all - logs[j]));
      }
    }
  }

  // q̂ and k̂ as tiles: eight rows a warp, four features a lane.
  __device__ void Units() {
    const int warp = Uniform(threadIdx.x / 32);
    const int lane = threadIdx.x % 32;
    const int dim = static_cast<int>(p_.head_dim);
    const int key = head_ / static_cast<int>(p_.value_heads / p_.key_heads);
    const int at = key * dim + 4 * lane;
    const auto load = [&](const void* from, Pack<T, 4>(&x)[8]) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const int i = 8 * warp + r;
        x[r] = {};
        if (i < place_.count && 4 * lane < dim) {
          x[r] = LoadPack<T, 4>(static_cast<const T*>(from) +
                                Row(i) * p_.stride + at);
        }
      }
    };
    constexpr bool kBoth = sizeof(T) == 2;  // at once, as registers allow
    Pack<T, 4> packs[kBoth ? 2 : 1][8];
    load(p_.q, packs[0]);
    if constexpr (kBoth) load(p_.k, packs[1]);
    Gates();  // meanwhile
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (!kBoth && which == 1) load(p_.k, packs[0]);
      const auto& rows = packs[kBoth ? which : 0];
      float squares[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        float x[4];
        Unpack(rows[r], x);
        squares[r] = x[0] * x[0];
#pragma unroll
        for (int j = 1; j < 4; ++j) squares[r] = fmaf(x[j], x[j], squares[r]);
      }
      // Lane l makes the factor of row l / 4.
      const float factor = (which == 0 ? p_.scale : 1.0f) /
                           sqrtf(SumOfRow(squares) + p_.unit_eps);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float own = __shfl_sync(0xffffffffu, factor, 4 * r);
        float x[4];
        Unpack(rows[r], x);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] *= own;
        StoreFour(1 + which, 8 * warp + r, x);
      }
    }
  }

  // L by warps 0 to 3, the scores of q by the others: 16 rows each.
  __device__ void Scores() {
    const int warp = Uniform(threadIdx.x / 32);
    const int lane = threadIdx.x % 32;
    const int m = warp % 4;
    const bool keys = warp < 4;
    float c[8][4] = {};
    if constexpr (kChannel) {
      ChannelScores(keys ? 2 : 1, m, c);
    } else {
#pragma unroll
      for (int step = 0; step < kDeltaPrefillDim / 16; ++step) {
        uint32_t a[kTerms][4];
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          LeftRows<256>(a[t], Address(Tile(keys ? 2 : 1, t)), 16 * m,
                        16 * step);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (n > m) break;
          uint32_t b[kTerms][4];
#pragma unroll
          for (int t = 0; t < kTerms; ++t) {
            RightRows<256>(b[t], Address(Tile(2, t)), 16 * n, 16 * step);
          }
          MultiplyTerms<kTerms>(c[2 * n], a, b, 0);
          MultiplyTerms<kTerms>(c[2 * n + 1], a, b, 1);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * m + lane / 4 + 8 * half;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        if (keys && n > 2 * m + 1) break;
        const int j = 8 * n + lane % 4 * 2;
        float x[2] = {};
        if (n <= 2 * m + 1) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const bool seen = keys ? j + e < i : j + e <= i;
            const float fade = kChannel ? 1.0f : FadeBetween(i, j + e);
            x[e] = seen ? c[n][2 * half + e] * fade : 0.0f;
            if (!keys) continue;
            x[e] *= -sh_.beta[i];
            if (n >= 2 * m) sh_.diagonal[m][i % 16][(j + e) % 16] = -x[e];
          }
        }
        if (keys && n >= 2 * m) continue;
        uint32_t terms[kTerms];
        ToTerms(x[0], x[1], terms);
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          char* const tile =
              keys ? lower_ + t * kLowerBytes
                   : image_ + DeltaTileAt(kTerms, 3) + t * kDeltaScoreBytes;
          *reinterpret_cast<uint32_t*>(tile + PieceAt<128>(i, n) +
                                       lane % 4 * 4) = terms[t];
        }
      }
    }
  }

  // Inverts the blocks on the diagonal of I + L, a thread for a column. Then
  // lower_ has these, and −L elsewhere.
  __device__ void Invert() {
    if (threadIdx.x >= kDeltaChunk) return;
    const int block = threadIdx.x / 16;
    const int column = threadIdx.x % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int k = 0; k < i; ++k) {
        x[i] = fmaf(-sh_.diagonal[block][i][k], x[k], x[i]);
      }
      float rest = x[i];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        const __nv_bfloat16 term = __float2bfloat16_rn(rest);
        *reinterpret_cast<__nv_bfloat16*>(
            lower_ + t * kLowerBytes +
            PieceAt<128>(16 * block + i, 2 * block + column / 8) +
            column % 8 * 2) = term;
        rest -= __bfloat162float(term);
      }
    }
  }

  // Copies of v, if they can be as they are: its first 128 columns as tile 0.
  __device__ void BeginValues() const {
    if constexpr (!kCopies) return;
    const int width = static_cast<int>(p_.value_dim);
    const T* const from = static_cast<const T*>(p_.v) + int64_t{head_} * width;
#pragma unroll
    for (int at = threadIdx.x; at < kDeltaChunk * kPieces;
         at += kPrepareThreads) {
      const int i = at / kPieces;
      const int piece = at % kPieces;
      char* const to = Tile(0, 0) + PieceAt<256>(i, piece);
      if (i < place_.count && 8 * piece < width) {
        CopyAsync16(Address(to), from + Row(i) * p_.stride + 8 * piece);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  // Before all meet.
  __device__ void EndValues() const {
    if constexpr (kCopies) {
      CopyAsyncWait();
    } else {
      LoadValues(0);
    }
  }

  // While the first warps invert: scores, q̂ as it meets the chunk's first
  // state, and decay.
  __device__ void StoreScores(char* image) const {
    const int tid = threadIdx.x;
    if (tid < kDeltaPrefillDim) {
      reinterpret_cast<float*>(image + DeltaDecayAt(kTerms))[tid] =
          Fade(kDeltaChunk - 1, tid) + poison_;
    }
    if (tid < kDeltaChunk) return;
    constexpr int kThreads = kPrepareThreads - kDeltaChunk;
    for (int at = tid - kDeltaChunk; at < kDeltaChunk * kPieces;
         at += kThreads) {
      StoreFaded(1, at % kDeltaChunk, at / kDeltaChunk, image);
    }
    for (int at = tid - kDeltaChunk; at < kTerms * kDeltaScoreBytes / 16;
         at += kThreads) {
      const int t = at / (kDeltaScoreBytes / 16);
      const int of = at % (kDeltaScoreBytes / 16);
      reinterpret_cast<uint4*>(image + DeltaTileAt(kTerms, 3))[at] =
          *reinterpret_cast<const uint4*>(
              image_ + DeltaTileAt(kTerms, 3) + t * kDeltaScoreBytes +
              PieceAt<128>(of % kDeltaChunk, of / kDeltaChunk));
    }
  }

  // W and U, 16 columns at a time, transposed: rows of the accumulators are
  // features, columns tokens. v is where W will be, 128 columns at a time. A
  // warp has the same columns of both, and of k̂.
  __device__ void Solve(char* values, char* image) {
    const int warp = Uniform(threadIdx.x / 32);
    const int lane = threadIdx.x % 32;
    const int width = kDeltaColumns * DeltaSplits(p_.value_dim);
    float x[8][4];
    for (int first = 0; first < width; first += kDeltaPrefillDim) {
      if (first > 0) {
        __syncthreads();
        LoadValues(first);
        __syncthreads();
      }
      const int column = first + 16 * warp;
      if (column < width) {
        LoadColumns(0, 16 * warp, x);
        SolveColumns<kTerms>(lower_, x);
        StoreValues<kTerms>(column, x, values);
      }
    }
    static_assert(kPrepareThreads / 32 == kDeltaPrefillDim / 16);
    LoadColumns(2, 16 * warp, x);
    SolveColumns<kTerms>(lower_, x);
    __syncwarp();
    StoreKeys(16 * warp, x);
    __syncwarp();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int i = part % 2 * 32 + lane;
      const int piece = 2 * warp + part / 2;
      StoreFaded(2, i, piece, image);
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        *reinterpret_cast<uint4*>(image + t * kDeltaTileBytes +
                                  ImageAt(i, piece)) =
            *reinterpret_cast<const uint4*>(Tile(0, t) +
                                            PieceAt<256>(i, piece));
      }
    }
  }

 private:
  static constexpr int kPieces = kDeltaPrefillDim / 8;  // of a row
  static constexpr bool kCopies = sizeof(T) == 2 && kTerms == 1;

  __device__ static uint32_t Address(const char* shared) {
    return SharedAddress(shared);
  }
  // In a tile of an image.
  __device__ static int ImageAt(int i, int piece) {
    return 16 * (kDeltaChunk * piece + i);
  }
  __device__ int64_t Row(int i) const { return int64_t{place_.token} + i; }
  // 0: −W, 1: q, 2: k.
  __device__ char* Tile(int tile, int term) const {
    return image_ + DeltaTileAt(kTerms, tile) + term * kDeltaTileBytes;
  }
  // g from the raw value plus bias.
  __device__ float Log(float x) const {
    const float log = DeltaLogDecayOf(p_.gate, speed_, x);
    const float least = kChannel ? kLeastChannelLog : kLeastLog;
    return log < least ? least : log;  // a NaN stays one
  }
  __device__ static float Power(int32_t log) {
    return expf(static_cast<float>(log) * kLogUnit);
  }
  // e^(γ_i − γ_j), one a head.
  __device__ float FadeBetween(int i, int j) const {
    const float2 a = sh_.log[i];
    const float2 b = sh_.log[j];
    const float log = (a.x - b.x) + (a.y - b.y);
    return kTerms == 1 ? FastExp(log) : expf(log);
  }
  // e^γ_i and e^(γ_C − γ_i) of feature d.
  __device__ float Fade(int i, int d) const {
    if constexpr (kChannel) return Power(logs_[i * kDeltaPrefillDim + d]);
    return sh_.fade[i];
  }
  __device__ float FadeToEnd(int i, int d) const {
    if constexpr (kChannel) {
      return Power(logs_[(kDeltaChunk - 1) * kDeltaPrefillDim + d] -
                   logs_[i * kDeltaPrefillDim + d]);
    }
    return sh_.to_end[i];
  }

  __device__ float Element(int tile, int i, int d) const {
    float x = 0.0f;
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      x += __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(
          Tile(tile, t) + PieceAt<256>(i, d / 8) + d % 8 * 2));
    }
    return x;
  }
  // The lane's four features of token i.
  __device__ void StoreFour(int tile, int i, const float (&x)[4]) const {
    const int lane = threadIdx.x % 32;
    uint32_t low[kTerms], high[kTerms];
    ToTerms(x[0], x[1], low);
    ToTerms(x[2], x[3], high);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      *reinterpret_cast<uint2*>(Tile(tile, t) + PieceAt<256>(i, lane / 2) +
                                lane % 2 * 8) = make_uint2(low[t], high[t]);
    }
  }
  // A piece of token i as it goes to the image, times its fade: of q from the
  // chunk's start, of k to its end.
  __device__ void StoreFaded(int tile, int i, int piece, char* image) const {
    uint32_t words[kTerms][4];
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      Copy(Tile(tile, t) + PieceAt<256>(i, piece), words[t]);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float low = Bf16::Low(words[0][w]);
      float high = Bf16::High(words[0][w]);
#pragma unroll
      for (int t = 1; t < kTerms; ++t) {
        low += Bf16::Low(words[t][w]);
        high += Bf16::High(words[t][w]);
      }
      const int d = 8 * piece + 2 * w;
      low *= tile == 1 ? Fade(i, d) : FadeToEnd(i, d);
      high *= tile == 1 ? Fade(i, d + 1) : FadeToEnd(i, d + 1);
      uint32_t terms[kTerms];
      ToTerms(low, high, terms);
#pragma unroll
      for (int t = 0; t < kTerms; ++t) words[t][w] = terms[t];
    }
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      *reinterpret_cast<uint4*>(image + DeltaTileAt(kTerms, tile) +
                                t * kDeltaTileBytes + ImageAt(i, piece)) =
          make_uint4(words[t][0], words[t][1], words[t][2], words[t][3]);
    }
  }
  __device__ static void Copy(const char* from, uint32_t (&words)[4]) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
  }

  // ---- of Solve ----

  // v's columns from `first` on as tile 0.
  __device__ void LoadValues(int first) const {
    const int warp = Uniform(threadIdx.x / 32);
    const int lane = threadIdx.x % 32;
    const int width = static_cast<int>(p_.value_dim);
    const T* const from =
        static_cast<const T*>(p_.v) + int64_t{head_} * width + first + 4 * lane;
    float x[8][4] = {};
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int i = 8 * warp + r;
      if (i < place_.count && first + 4 * lane < width) {
        Unpack(LoadPack<T, 4>(from + Row(i) * p_.stride), x[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) StoreFour(0, 8 * warp + r, x[r]);
  }
  // β v of tile 0, or β e^γ k̂ of tile 2.
  __device__ void LoadColumns(int tile, int first, float (&x)[8][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[kTerms][4];
#pragma unroll
      for (int t = 0; t < kTerms; ++t) {
        LoadMatricesTransposed(
            words[t], Address(Tile(tile, t)) +
                          PieceAt<256>(8 * j + lane / 16 * 8 + lane % 8,
                                       first / 8 + lane / 8 % 2));
      }
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          const uint32_t word = words[t][r / 2];
          const float term = r % 2 == 0 ? Bf16::Low(word) : Bf16::High(word);
          sum = t == 0 ? term : sum + term;
        }
        const int i = TokenOf(j + r / 4, r);
        float scale = sh_.beta[i];
        if (tile == 2) scale *= Fade(i, first + lane / 4 + r / 2 % 2 * 8);
        x[j + r / 4][r % 4] = scale * sum;
      }
    }
  }
  __device__ void StoreKeys(int first, const float (&x)[8][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t terms[kTerms];
        ToTerms(-x[j][2 * half], -x[j][2 * half + 1], terms);
#pragma unroll
        for (int t = 0; t < kTerms; ++t) {
          *reinterpret_cast<uint32_t*>(
              Tile(0, t) + PieceAt<256>(8 * j + lane / 4, first / 8 + half) +
              lane % 4 * 4) = TransposeMatrix(terms[t]);
        }
      }
    }
  }
  // Σ_d left_id k̂_jd e^(γ_id − γ_jd), element by element: no power of a decay
  // stands alone, which could overflow.
  __device__ void ChannelScores(int left, int m, float (&c)[8][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n > 2 * m + 1) break;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int i = 16 * m + lane / 4 + r / 2 * 8;
        const int j = 8 * n + lane % 4 * 2 + r % 2;
        if (j > i) continue;
        const int32_t* const from = logs_ + i * kDeltaPrefillDim;
        const int32_t* const to = logs_ + j * kDeltaPrefillDim;
        float sum = 0.0f;
        for (int d = 0; d < p_.head_dim; ++d) {
          sum = fmaf(Element(left, i, d) * Element(2, j, d),
                     Power(from[d] - to[d]), sum);
        }
        c[n][r] = sum;
      }
    }
  }

  const GatedDeltaParams& p_;
  const int head_;
  const ChunkPlace place_;
  const float speed_;
  char* const image_;
  char* const lower_;  // [64, 64] in terms
  PrepareShared& sh_;
  int32_t* const logs_;  // [64, 128] γ in kLogUnit, where it is by channel
  float poison_ = 0.0f;  // NaN if one of the thread's g is; integers have none
};

// Grid: (value heads, chunks of a round).
template <typename T, int kTerms, bool kChannel>
__global__ void __launch_bounds__(kPrepareThreads, kTerms == 1 ? 3 : 1)
    delta_prepare_kernel(const __grid_constant__ Round round) {
  LaunchDependents();
  extern __shared__ __align__(128) char delta_memory[];
  WaitForPrevious();
  const int2 found = FindChunk(round, blockIdx.y);
  if (found.x < 0) return;
  const int head = blockIdx.x;
  const ChunkPlace place = PlaceOf(round, SpanOf(round, found.x), found.y);
  const int64_t item = int64_t{blockIdx.y} * round.p.of.value_heads + head;
  Prepare<T, kTerms, kChannel> prepare(round, head, place, delta_memory);
  char* const image = round.images + item * DeltaImageBytes(kTerms);
  prepare.BeginValues();
  prepare.Units();
  __syncthreads();
  prepare.Scores();
  __syncthreads();
  prepare.StoreScores(image);
  prepare.Invert();
  prepare.EndValues();
  __syncthreads();
  prepare.Solve(
      round.values + item * DeltaValueBytes(round.p.of.value_dim, kTerms),
      image);
}

}  // namespace gated_delta
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_PREPARE_CUH_
