#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_decode.cuh"
#include "kernels/tpa/tpa_fold.cuh"
#include "kernels/tpa/tpa_query.cuh"
#include "kernels/tpa/tpa_ring.cuh"

namespace recurve {
namespace {

// ----------------------------------------------------------------------------
// CUDA kernels

// What the registers of a multiprocessor allow, by feature size.
template <int kFeatures>
struct Variant;
template <>
struct Variant<64> {
  static constexpr int kWarps = kTpaVariants[0].warps;
  static constexpr int kThreads = kTpaVariants[0].max_threads();
  static constexpr bool kQueryInRegisters = true;
  static constexpr bool kMovesRegisters = false;
};
template <>
struct Variant<128> {
  static constexpr int kWarps = kTpaVariants[1].warps;
  static constexpr int kThreads = kTpaVariants[1].max_threads();
  static constexpr bool kQueryInRegisters = true;
  static constexpr bool kMovesRegisters = true;
};
template <>
struct Variant<256> {
  static constexpr int kWarps = kTpaVariants[2].warps;
  static constexpr int kThreads = kTpaVariants[2].max_threads();
  static constexpr bool kQueryInRegisters = false;
  static constexpr bool kMovesRegisters = true;
};

// Two or four warps work on a group of 16 heads (of one new token). On a tile
// of 64 tokens each scores its part of them for all 16 heads; the weights meet
// in shared memory, and each warp multiplies them with its part of the value
// features.
template <typename T, int kFeatures>
class GroupWorker {
 public:
  static constexpr int kWarps = Variant<kFeatures>::kWarps;
  static constexpr int kSteps = kFeatures / 16;  // of the scores' products
  static constexpr int kSixteens = 4 / kWarps;   // of tokens in a warp's part
  static constexpr int kScores = 8 * kSixteens;  // registers
  static constexpr int kBlocks = kFeatures / 16 / kWarps;  // of 16 features
  static constexpr int kOutputs = 8 * kBlocks;             // registers
  // Terms of a query add up apart from each other: more products in flight,
  // and small ones are not lost.
  static constexpr int kSums = kFeatures == 64 ? 1 : Half<T>::kTerms;
  using Query = QueryFragments<T, kFeatures, kWarps,
                               Variant<kFeatures>::kQueryInRegisters>;

  struct Shared {
    uint32_t weights;  // [2, groups, 16 heads, 64 tokens], swizzled
    float* maxima;     // [groups, 16, kWarps]
    float* sums;
    float* work;     // FormQueries', then two sets of outputs
    uint32_t terms;  // of the query, where registers do not suffice
  };

  __device__ GroupWorker(const TpaDecodeArgs& args, const Shared& shared,
                         TpaRing ring)
      : args_(args),
        shared_(shared),
        ring_(ring),
        lane_(threadIdx.x % 32),
        part_(threadIdx.x / 32 % kWarps),
        group_(threadIdx.x / (32 * kWarps)),
        pair_(blockIdx.y * args.groups + group_),
        head_group_(pair_ % args.head_groups),
        t_(pair_ / args.head_groups) {}

  __device__ void Run(const TpaRange& range) {
    for (int row = range.first_row; row <= range.last_row && row < args_.p.rows;
         ++row) {
      const int length = RowLength(args_, row);
      const int row_chunks = TpaChunkCount(length);
      const int begin = range.ChunkBegin(row);
      const int end = range.ChunkEnd(row, row_chunks);
      if (begin < end) {
        AttendRow(row, length, row_chunks, begin, end);
      } else if (!args_.split && row == range.first_row) {
        WriteResult(row);  // an empty row: zeros
      }
    }
  }

 private:
  // A result without its normalisation, of two heads: rows lane / 4 and
  // lane / 4 + 8 of the group.
  struct State {
    float max[2];
    float sum[2];
  };

  __device__ void AttendRow(int row, int length, int row_chunks, int begin,
                            int end) {
    FormQueries<kFeatures>(args_, row, Consumers(), shared_.work);
    query_.Build(shared_.work, shared_.terms, args_.groups, group_, part_);
    NamedBarrier(kConsumerBarrier, Consumers());
    const int visible = VisibleTokens(args_, length, t_);
    const bool whole_row = begin == 0 && end == row_chunks;
    State segment = {};
    State total = {};
    for (int chunk = begin; chunk < end; ++chunk) {
      const int position = TpaChunkBegin(chunk);
      const int last_tile = (min(TpaChunkBegin(chunk + 1), length) + 63) / 64;
      StartChunk();
      for (int tile = position / 64; tile < last_tile; ++tile) {
        Tile(64 * tile, visible);
      }
      const int s = TpaSegmentOf(position);
      const int first = TpaChunkOf(TpaSegmentBegin(s));
      const int last = min(TpaChunkOf(TpaSegmentBegin(s + 1)), row_chunks) - 1;
      if (first < begin || last >= end) {
        WritePartial(row, chunk, NextLooseSlot());
        continue;
      }
      FoldInto(segment, 0, chunk == first, chunk == last);
      if (chunk != last) continue;
      if (whole_row) {
        FoldInto(total, 1, first == 0, end - 1 == last);
      } else {
        WritePartial(row, first,
                     row * static_cast<int>(args_.scratch.max_segments) + s);
      }
    }
    if (whole_row) {
      WriteResult(row);
      if (args_.split) NoteSlot(row, 0, kRowIsDone);
    }
  }

  __device__ void StartChunk() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      state_.max[i] = kMinusInfinity;
      state_.sum[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i / 4][i % 4] = 0.0f;
  }

  // Scores of this warp's tokens: scores[n][2 i + j] is of head row i and of
  // token 8 n + 2 (lane % 4) + j of the part.
  __device__ __forceinline__ void Scores(float (&scores)[2 * kSixteens][4]) {
    const int kv_rank = static_cast<int>(args_.p.shape.kv_rank);
    const int a_groups = static_cast<int>(args_.layout.a_width) / 8;
    const int b_groups = static_cast<int>(args_.layout.b_k_width) / 8;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i / 4][i % 4] = 0.0f;
    const int b_token = Token(0);
    const int b_swap = Swap(b_token, b_groups);
    const int b_half = lane_ / 8 % 2;  // of a step's 16 features
    for (int r = 0; r < kv_rank; ++r) {
      ring_.WaitFull();
      const uint32_t stage = ring_.stage();
      const uint32_t b_row = stage +
                             128 * static_cast<uint32_t>(args_.layout.a_width) +
                             16 * b_token * b_groups;
      float sum[kSums][2 * kSixteens][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        // Beyond D the query is zero, and any key of the token will do.
        const int chunk = 2 * step < b_groups ? 2 * step + b_half : b_half;
        uint32_t b[kSixteens][4];
#pragma unroll
        for (int n = 0; n < kSixteens; ++n) {
          LoadMatrices(b[n],
                       b_row + 16 * (16 * n * b_groups + (chunk ^ b_swap)));
        }
#pragma unroll
        for (int term = Half<T>::kTerms - 1; term >= 0; --term) {
          uint32_t a[4];
          query_.Get(step, term, a);
          constexpr int kLast = kSums - 1;
          const int to = term < kLast ? term : kLast;
#pragma unroll
          for (int n = 0; n < kSixteens; ++n) {
            Half<T>::Mma(sum[to][2 * n], a, b[n][0], b[n][1]);
            Half<T>::Mma(sum[to][2 * n + 1], a, b[n][2], b[n][3]);
          }
        }
      }
      uint32_t a_k[kSixteens][4];
      LoadA(a_k, stage, a_groups);
      ring_.Release();
      ring_.Next();
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        float product = sum[kSums - 1][i / 4][i % 4];
#pragma unroll
        for (int term = kSums - 2; term >= 0; --term) {
          product += sum[term][i / 4][i % 4];
        }
        if constexpr (Half<T>::kNeedsScale) {
          product *= query_.Undo(i % 4 / 2);
        }
        scores[i / 4][i % 4] =
            __fmaf_rn(Factor(a_k, i), product, scores[i / 4][i % 4]);
      }
    }
  }

  __device__ __forceinline__ void Tile(int tile_position, int visible) {
    float scores[2 * kSixteens][4];
    Scores(scores);
    const bool masked = tile_position + 64 > visible;
    if (masked) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int token = tile_position + 16 * kSixteens * part_ + 8 * (i / 4) +
                          lane_ % 4 * 2 + i % 2;
        if (token >= visible) scores[i / 4][i % 4] = kMinusInfinity;
      }
    }
    float scale[2];
    TileMaxima(scores, scale);
    // Scores become weights.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float base = state_.max[i] == kMinusInfinity ? 0.0f : state_.max[i];
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 4 * kSixteens; ++j) {
        float& x = scores[j / 2][2 * i + j % 2];
        x = Exp2(x - base);
        sum += x;
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane_ % 4 == 0) ShareRow(shared_.sums, i) = sum;
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out_[i / 4][i % 4] *= scale[i % 4 / 2];
    AddValues(scores, masked, scale);
  }

  // The maximum over all warps' tokens, and with it the new state_.max; `scale`
  // is what brings older results to it.
  __device__ __forceinline__ void TileMaxima(
      const float (&scores)[2 * kSixteens][4], float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = kMinusInfinity;
#pragma unroll
      for (int j = 0; j < 4 * kSixteens; ++j) {
        max = fmaxf(max, scores[j / 2][2 * i + j % 2]);
      }
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      if (lane_ % 4 == 0) ShareRow(shared_.maxima, i) = max;
    }
    GroupBarrier();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = state_.max[i];
#pragma unroll
      for (int part = 0; part < kWarps; ++part) {
        max = fmaxf(max, SharedRow(shared_.maxima, i)[part]);
      }
      scale[i] = ScalesFor(state_.max[i], state_.max[i], max).running;
      state_.max[i] = max;
    }
  }

  // out += Σ_r (weights ∘ A_v[r]) · B_v[r], and the sums of the weights.
  __device__ __forceinline__ void AddValues(
      const float (&weights)[2 * kSixteens][4], bool masked,
      const float (&scale)[2]) {
    const int kv_rank = static_cast<int>(args_.p.shape.kv_rank);
    const int a_groups = static_cast<int>(args_.layout.a_width) / 8;
    const int b_groups = static_cast<int>(args_.layout.b_v_width) / 8;
    for (int r = 0; r < kv_rank; ++r) {
      ring_.WaitFull();
      const uint32_t stage = ring_.stage();
      uint32_t a_v[kSixteens][4];
      LoadA(a_v, stage, a_groups);
      const uint32_t buffer =
          shared_.weights + 2048 * ((r & 1) * args_.groups + group_);
#pragma unroll
      for (int i = 0; i < 4 * kSixteens; ++i) {  // head row i % 2, tokens i / 2
        float x[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float weight = weights[i / 2][i % 2 * 2 + j];
          x[j] = weight * Factor(a_v, 4 * (i / 2) + i % 2 * 2 + j);
          // Nobody wrote the factors of masked tokens.
          if (masked && weight == 0.0f) x[j] = 0.0f;
        }
        const int row = lane_ / 4 + 8 * (i % 2);
        const int chunk = (2 * kSixteens * part_ + i / 2) ^ (row % 8);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                         buffer + 128 * row + 16 * chunk + 4 * (lane_ % 4)),
                     "r"(Half<T>::Pack(x[0], x[1]))
                     : "memory");
      }
      GroupBarrier();
      if (r == 0) AddSums(scale);
      Multiply(buffer, stage + 128 * args_.layout.a_width, b_groups);
      ring_.Release();
      ring_.Next();
    }
  }

  __device__ __forceinline__ void AddSums(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = SharedRow(shared_.sums, i)[0];
#pragma unroll
      for (int part = 1; part < kWarps; ++part) {
        sum += SharedRow(shared_.sums, i)[part];
      }
      state_.sum[i] = __fmaf_rn(state_.sum[i], scale[i], sum);
    }
  }

  __device__ __forceinline__ void Multiply(uint32_t weights, uint32_t b_v,
                                           int b_groups) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // of 16 tokens
      const int row = lane_ % 16;
      uint32_t a[4];
      LoadMatrices(
          a, weights + 128 * row + 16 * ((2 * step + lane_ / 16) ^ (row % 8)));
      const int token = 16 * step + lane_ % 16;
      const uint32_t b_row = b_v + 16 * token * b_groups;
      const int swap = Swap(token, b_groups);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        // What lies beyond E is not written in the end: any value will do.
        const int wanted = 2 * (part_ + kWarps * block);
        const int chunk = (wanted < b_groups ? wanted : 0) + lane_ / 16;
        uint32_t b[4];
        LoadMatricesTransposed(b, b_row + 16 * (chunk ^ swap));
        Half<T>::Mma(out_[2 * block], a, b[0], b[1]);
        Half<T>::Mma(out_[2 * block + 1], a, b[2], b[3]);
      }
    }
  }

  // The token (of a tile) whose row this lane names to LoadMatrices, for the
  // n-th 16 of the part.
  __device__ __forceinline__ int Token(int n) const {
    return 16 * (kSixteens * part_ + n) + lane_ % 8 + lane_ / 16 * 8;
  }
  // A_k or A_v of this group's heads and this warp's tokens, as scores are laid
  // out. Of heads that do not exist: another's.
  __device__ __forceinline__ void LoadA(uint32_t (&a)[kSixteens][4],
                                        uint32_t stage, int a_groups) {
    const int chunk = min(2 * head_group_ + lane_ / 8 % 2, a_groups - 1);
#pragma unroll
    for (int n = 0; n < kSixteens; ++n) {
      LoadMatricesTransposed(a[n],
                             stage + 16 * (Token(n) * a_groups +
                                           (chunk ^ Swap(Token(n), a_groups))));
    }
  }
  // The factor that belongs to scores[i / 4][i % 4].
  __device__ __forceinline__ static float Factor(
      const uint32_t (&a)[kSixteens][4], int i) {
    const uint32_t pair = a[i / 8][i % 8 / 4 * 2 + i % 4 / 2];
    return i % 2 == 0 ? Half<T>::Low(pair) : Half<T>::High(pair);
  }
  __device__ __forceinline__ static int Swap(int token, int groups) {
    return (token >> TpaPageLayout::SwizzleShift(groups)) &
           TpaPageLayout::SwizzleMask(groups);
  }

  __device__ __forceinline__ void GroupBarrier() {
    NamedBarrier(1 + group_, 32 * kWarps);
  }
  __device__ __forceinline__ float& ShareRow(float* shared, int i) {
    return shared[kWarps * (16 * group_ + lane_ / 4 + 8 * i) + part_];
  }
  __device__ __forceinline__ const float* SharedRow(const float* shared,
                                                    int i) {
    return shared + kWarps * (16 * group_ + lane_ / 4 + 8 * i);
  }
  __device__ __forceinline__ int Consumers() const {
    return 32 * kWarps * args_.groups;
  }

  // Merges the state and outputs at hand into a running result, whose outputs
  // wait in set `set` of the work memory, and leaves it at hand if it is the
  // last.
  __device__ void FoldInto(State& running, int set, bool first, bool last) {
    const int threads = Consumers();
    float* memory = shared_.work + set * kOutputs * threads + threadIdx.x;
    if (!first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float max = fmaxf(running.max[i], state_.max[i]);
        const FoldScales scales = ScalesFor(running.max[i], state_.max[i], max);
        state_.max[i] = max;
        state_.sum[i] = Fold(running.sum[i], state_.sum[i], scales);
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
          if (j % 4 / 2 != i) continue;
          float& out = out_[j / 4][j % 4];
          out = Fold(memory[j * threads], out, scales);
        }
      }
    }
    running = state_;
    if (last) return;
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      memory[j * threads] = out_[j / 4][j % 4];
    }
  }

  // Head of row half i, or -1.
  __device__ __forceinline__ int Head(int i) const {
    const int head = 16 * head_group_ + lane_ / 4 + 8 * i;
    return pair_ < args_.pairs && head < args_.p.shape.num_heads ? head : -1;
  }
  // First of the two neighbouring features in out_[n].
  __device__ __forceinline__ int Feature(int n) const {
    return 16 * (part_ + kWarps * (n / 2)) + 8 * (n % 2) + lane_ % 4 * 2;
  }

  __device__ int NextLooseSlot() {
    return args_.p.rows * static_cast<int>(args_.scratch.max_segments) +
           2 * kTpaSegmentChunks * static_cast<int>(blockIdx.x) + loose_++;
  }
  __device__ void NoteSlot(int row, int chunk, int slot) {
    if (threadIdx.x != 0 || blockIdx.y != 0) return;
    auto* slots = reinterpret_cast<int32_t*>(
        static_cast<char*>(args_.p.scratch) + args_.scratch.chunk_slot);
    slots[row * args_.scratch.max_chunks + chunk] = slot;
  }

  __device__ void WritePartial(int row, int chunk, int slot) {
    NoteSlot(row, chunk, slot);
    char* scratch = static_cast<char*>(args_.p.scratch);
    auto* max_log_sum =
        reinterpret_cast<float2*>(scratch + args_.scratch.max_log_sum);
    auto* outputs = reinterpret_cast<float*>(scratch + args_.scratch.outputs);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (Head(i) < 0) continue;
      const int64_t at =
          slot * args_.scratch.slot_rows + 16 * pair_ + lane_ / 4 + 8 * i;
      if (part_ == 0 && lane_ % 4 == 0) {
        max_log_sum[at] = {state_.max[i], state_.sum[i]};
      }
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) {
        if (Feature(n) >= args_.scratch.slot_width) continue;
        *reinterpret_cast<float2*>(outputs + at * args_.scratch.slot_width +
                                   Feature(n)) = {out_[n][2 * i],
                                                  out_[n][2 * i + 1]};
      }
    }
  }

  __device__ void WriteResult(int row) {
    const TpaCudaDecodeParams& p = args_.p;
    const int value_dim = static_cast<int>(p.shape.value_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (Head(i) < 0) continue;
      float* out = p.out + (int64_t{row} * p.new_tokens + t_) * p.out_stride +
                   Head(i) * value_dim;
      const float scale =
          Normalizer(state_.sum[i], static_cast<int>(p.shape.kv_rank));
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) {
        if (Feature(n) >= value_dim) continue;
        out[Feature(n)] = __fmul_rn(out_[n][2 * i], scale);
        out[Feature(n) + 1] = __fmul_rn(out_[n][2 * i + 1], scale);
      }
    }
  }

  const TpaDecodeArgs& args_;
  const Shared& shared_;
  TpaRing ring_;
  Query query_;
  State state_ = {};
  float out_[2 * kBlocks][4] = {};
  int loose_ = 0;
  const int lane_;
  const int part_;
  const int group_;
  const int pair_;
  const int head_group_;
  const int t_;
};

template <typename T, int kFeatures>
__global__ void __launch_bounds__(Variant<kFeatures>::kThreads, 1)
    tpa_decode_kernel(const __grid_constant__ TpaDecodeArgs args) {
  using Worker = GroupWorker<T, kFeatures>;
  extern __shared__ __align__(128) char memory[];
  const int heads = 16 * args.groups;
  char* at = memory + args.stages * args.stage_bytes;
  typename Worker::Shared shared;
  shared.weights = SharedAddress(at);
  at += 2 * 2048 * args.groups;
  shared.maxima = reinterpret_cast<float*>(at);
  shared.sums = shared.maxima + 64 * args.groups;
  at += 512 * args.groups;
  shared.terms = SharedAddress(at);
  if (!Variant<kFeatures>::kQueryInRegisters) at += 2 * 3 * heads * kFeatures;
  const uint32_t barriers = SharedAddress(at);
  at += 16 * args.stages;
  shared.work = reinterpret_cast<float*>(at);
  const TpaRing ring(args, SharedAddress(memory), barriers);
  const int consumer_warps = Worker::kWarps * args.groups;
  if (threadIdx.x == 0) ring.Init(consumer_warps, args.bulk_copies);
  __syncthreads();
  LaunchDependents();
  const int warp = threadIdx.x / 32;
  if (warp >= consumer_warps) {
    if constexpr (Variant<kFeatures>::kMovesRegisters) ReleaseRegisters<40>();
    if (warp > consumer_warps) return;
    CopyTiles(args, FindRange(args, blockIdx.x, gridDim.x), ring);
  } else {
    if constexpr (Variant<kFeatures>::kMovesRegisters) ClaimRegisters<232>();
    Worker(args, shared, ring).Run(FindRange(args, blockIdx.x, gridDim.x));
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename T, int kFeatures>
cudaError_t Launch(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                   cudaStream_t stream) {
  const auto kernel = tpa_decode_kernel<T, kFeatures>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(plan.blocks),
                  static_cast<unsigned>(plan.head_blocks));
  kernel<<<grid, plan.threads, plan.shared_bytes, stream>>>(args);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchVariant(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                          cudaStream_t stream) {
  switch (plan.variant) {
    case 0:
      return Launch<T, 64>(args, plan, stream);
    case 1:
      return Launch<T, 128>(args, plan, stream);
    case 2:
      return Launch<T, 256>(args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

int64_t MaxLength(const TpaCudaDecodeParams& p) {
  return kTpaPageTokens * p.cache.page_table_stride;
}

bool Valid(const TpaCudaDecodeParams& p, const TpaDecodePlan& plan) {
  const TpaPageLayout layout(p.shape, TpaPageOrder::kSwizzled);
  const bool split = plan.form == TpaDecodeForm::kParallelBn;
  return TpaDecodeSupports(p.shape) && plan.blocks > 0 && p.rows > 0 &&
         (split || plan.blocks == p.rows) && p.rows <= 65535 &&
         plan.groups * plan.head_blocks >=
             p.new_tokens * TpaHeadGroups(p.shape) &&
         p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         reinterpret_cast<uintptr_t>(p.cache.pages) % 16 == 0 &&
         p.position != LrpeType::kCosine && p.new_tokens >= 1 &&
         MaxLength(p) * p.rows <= INT32_MAX &&
         p.scratch_bytes >= TpaDecodeScratchBytes(p, plan);
}

}  // namespace

int64_t TpaDecodeScratchBytes(const TpaCudaDecodeParams& params,
                              const TpaDecodePlan& plan) {
  return TpaDecodeScratch(params.shape, plan, params.rows, params.new_tokens,
                          MaxLength(params))
      .bytes;
}

cudaError_t GetTpaDevice(TpaDevice* device) {
  int id = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&id);
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess)
      error = cudaDeviceGetAttribute(value, attribute, id);
  };
  get(&device->multiprocessors, cudaDevAttrMultiProcessorCount);
  get(&device->shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  get(&major, cudaDevAttrComputeCapabilityMajor);
  device->hopper = major == 9;
  return error;
}

cudaError_t LaunchTpaDecode(const TpaCudaDecodeParams& params,
                            const TpaDecodePlan& plan, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  if (!Valid(params, plan)) return cudaErrorInvalidValue;
  TpaDecodeArgs args = {params,
                        TpaPageLayout(params.shape, TpaPageOrder::kSwizzled),
                        TpaDecodeScratch(params.shape, plan, params.rows,
                                         params.new_tokens, MaxLength(params)),
                        static_cast<int>(MaxLength(params)),
                        TpaHeadGroups(params.shape),
                        params.new_tokens * TpaHeadGroups(params.shape),
                        plan.groups,
                        plan.stages,
                        plan.stage_bytes,
                        plan.form == TpaDecodeForm::kParallelBn,
                        plan.bulk_copies};
  const cudaError_t error =
      params.cache.element == TpaElement::kBFloat16
          ? LaunchVariant<__nv_bfloat16>(args, plan, stream)
          : LaunchVariant<__half>(args, plan, stream);
  if (error != cudaSuccess || !args.split) return error;
  return LaunchTpaMerge(args, plan.dependent_launch, stream);
}

}  // namespace recurve
