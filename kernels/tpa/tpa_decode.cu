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
struct Variant {
  static constexpr TpaVariant kIs = kTpaVariants[kFeatures == 64    ? 0
                                                 : kFeatures == 128 ? 1
                                                                    : 2];
  static_assert(kIs.features == kFeatures);
  // Whole warpgroups can hand registers to each other.
  static constexpr bool kMovesRegisters = kIs.copy_threads == 128;
};

// Where things are in a block's shared memory, behind the ring of stages.
struct Shared {
  uint32_t weights;  // [2, groups, pages of a tile, 16 heads, 64 tokens]
  float* maxima;     // [groups, 16, warps of a group]
  float* sums;
  char* terms;  // of the query
  float* work;  // FormQueries' staging, then outputs of a row
};

// Two or four warps work on a group of 16 heads (of one new token). On each
// page of a tile each scores its part of the tokens for all 16 heads; the
// weights meet in shared memory, and each warp multiplies them with its part of
// the value features.
template <typename T, int kFeatures>
class GroupWorker {
 public:
  static constexpr TpaVariant kIs = Variant<kFeatures>::kIs;
  static constexpr int kWarps = kIs.warps;
  static constexpr int kPages = kIs.pages;
  static constexpr int kTerms = Half<T>::kTerms;
  static constexpr int kSteps = kFeatures / 16;  // of the scores' products
  static constexpr int kPart = 4 / kWarps;  // 16s of a page in a warp's part
  static constexpr int kSixteens = kPages * kPart;
  static constexpr int kScores = 8 * kSixteens;            // registers
  static constexpr int kBlocks = kFeatures / 16 / kWarps;  // of 16 features
  static constexpr int kOutputs = 8 * kBlocks;             // registers
  // The largest term adds up apart from the others, where registers allow:
  // small ones are not lost, and more products are in flight.
  static constexpr int kSums = kFeatures == 64 ? 1 : 2;
  // So are operands loaded a step ahead of use.
  static constexpr int kAhead = kFeatures == 64 ? 0 : 1;

  __device__ __forceinline__ GroupWorker(const TpaDecodeArgs& args,
                                         const Shared& shared, TpaRing ring)
      : args_(args),
        shared_(shared),
        ring_(ring),
        lane_(threadIdx.x % 32),
        part_(threadIdx.x / 32 % kWarps),
        group_(threadIdx.x / (32 * kWarps)),
        pair_(blockIdx.y * args.groups + group_),
        head_group_(pair_ % args.head_groups),
        t_(pair_ / args.head_groups),
        kv_rank_(static_cast<int>(args.p.shape.kv_rank)) {
    const int a_groups = static_cast<int>(args.layout.a_width) / 8;
    const int k_groups = static_cast<int>(args.layout.b_k_width) / 8;
    const int v_groups = static_cast<int>(args.layout.b_v_width) / 8;
    const uint32_t b_plane = 128 * static_cast<uint32_t>(args.layout.a_width);
    // Swaps depend on the low three bits of the token alone, and those are the
    // lane's wherever it names a token. Of heads that do not exist: another's.
    const int token = 16 * kPart * part_ + lane_ % 8 + lane_ / 16 * 8;
    const int a_chunk = min(2 * head_group_ + lane_ / 8 % 2, a_groups - 1);
    a_offset_ = 16 * (token * a_groups + (a_chunk ^ Swap(a_groups)));
    k_row_ = b_plane + 16 * token * k_groups;
    k_swap_ = 16 * (lane_ / 8 % 2 ^ Swap(k_groups));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      // What lies beyond E is not written in the end: any value will do.
      const int wanted = 2 * (part_ + kWarps * block);
      const int chunk = (wanted < v_groups ? wanted : 0) + lane_ / 16;
      v_offset_[block] =
          b_plane + 16 * (lane_ % 16 * v_groups + (chunk ^ Swap(v_groups)));
    }
    weights_write_ = 128 * (lane_ / 4) +
                     16 * ((2 * kPart * part_) ^ (lane_ / 4)) + 4 * (lane_ % 4);
    weights_read_ = 128 * (lane_ % 16) + 16 * (lane_ / 16 ^ lane_ % 8);
  }

  __device__ __forceinline__ void Run(const TpaRange& range) {
#pragma unroll 1
    for (int row = range.first_row; row <= range.last_row && row < args_.p.rows;
         ++row) {
      const int length = RowLength(args_, row);
      const int row_chunks = TpaChunkCount(length);
      const int begin = range.ChunkBegin(row);
      const int end = range.ChunkEnd(row, row_chunks);
      if (begin < end) {
        AttendRow(row, length, row_chunks, begin, end);
      }
      // Whole rows; an empty one too if nobody merges: zeros.
      if (begin == 0 && end == row_chunks &&
          (begin < end || (!args_.split && row == range.first_row))) {
        WriteResult(row);
        if (args_.split) NoteSlot(row, 0, kRowIsDone);
      }
    }
  }

 private:
  // A result without its normalisation, of two heads: rows lane / 4 and
  // lane / 4 + 8 of the group.
  struct State {
    float max[2] = {kMinusInfinity, kMinusInfinity};
    float sum[2] = {0.0f, 0.0f};
  };

  __device__ __forceinline__ void AttendRow(int row, int length, int row_chunks,
                                            int begin, int end) {
    FormQueries<T, kFeatures>(args_, row, Consumers(), shared_.work,
                              shared_.terms);
    LoadQueries();
    const int visible = VisibleTokens(args_, length, t_);
    const bool whole_row = begin == 0 && end == row_chunks;
    State segment;
    State total;
#pragma unroll 1
    for (int chunk = begin; chunk < end; ++chunk) {
      const int position = TpaChunkBegin(chunk);
      const int stop = min(TpaChunkBegin(chunk + 1), length);
      state_ = State();
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) out_[i / 4][i % 4] = 0.0f;
#pragma unroll 1
      for (int tile = position; tile < stop; tile += 64 * kPages) {
        Tile(tile, visible);
      }
      const int s = TpaSegmentOf(position);
      const int first = TpaChunkOf(TpaSegmentBegin(s));
      const int last = min(TpaChunkOf(TpaSegmentBegin(s + 1)), row_chunks) - 1;
      const bool loose = first < begin || last >= end;
      if (!loose) {
        FoldIntoSegment(segment, chunk == first);
        if (chunk != last) continue;
        if (whole_row) {
          FoldIntoRow(total, first == 0, last == end - 1);
          continue;
        }
      }
      WritePartial(row, loose ? chunk : first, Slot(row, s, loose));
    }
  }

  __device__ __forceinline__ uint32_t Terms(int term) const {
    return SharedAddress(shared_.terms) +
           16 * (term * args_.groups + group_) * kFeatures * 2;
  }
  __device__ __forceinline__ void LoadQueries() {
    if constexpr (kIs.query_in_registers) {
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          LoadQuery<kFeatures>(query_[step][term], Terms(term), step);
        }
      }
    }
  }

  __device__ __forceinline__ void Tile(int position, int visible) {
    float scores[2 * kSixteens][4];
    Scores(scores);
    const bool masked = position + 64 * kPages > visible;
    if (masked) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (Token(position, i) >= visible)
          scores[i / 4][i % 4] = kMinusInfinity;
      }
    }
    __syncwarp();
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
#pragma unroll 1
    for (int r = 0; r < kv_rank_; ++r) {
      AddValues(scores, r & 1, masked ? visible - position : 64 * kPages);
      if (r == 0) AddSums(scale);
    }
  }

  // Scores of this warp's tokens: scores[n][2 i + j] is of head row i and of
  // token 8 n + 2 (lane % 4) + j of its parts, page after page.
  __device__ __forceinline__ void Scores(float (&scores)[2 * kSixteens][4]) {
    const int k_groups = static_cast<int>(args_.layout.b_k_width) / 8;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int r = 0; r < kv_rank_; ++r) {
      uint32_t stage[kPages];
#pragma unroll
      for (int page = 0; page < kPages; ++page) {
        stage[page] = ring_.WaitFull(page);
      }
      float sum[kSums][2 * kSixteens][4] = {};
      uint32_t keys[1 + kAhead][kSixteens][4];
      if (kAhead == 1) LoadKeys(keys[0], stage, 0, k_groups);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + kAhead < kSteps) {
          LoadKeys(keys[(step + kAhead) % (1 + kAhead)], stage, step + kAhead,
                   k_groups);
        }
        const uint32_t(&b)[kSixteens][4] = keys[step % (1 + kAhead)];
#pragma unroll
        for (int term = kTerms - 1; term >= 0; --term) {
          uint32_t a[4];
          if constexpr (kIs.query_in_registers) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = query_[step][term][i];
          } else {
            LoadQuery<kFeatures>(a, Terms(term), step);
          }
          const int to = term == 0 ? 0 : kSums - 1;
#pragma unroll
          for (int n = 0; n < kSixteens; ++n) {
            Half<T>::Mma(sum[to][2 * n], a, b[n][0], b[n][1]);
            Half<T>::Mma(sum[to][2 * n + 1], a, b[n][2], b[n][3]);
          }
        }
      }
      uint32_t a_k[kSixteens][4];
      LoadA(a_k, stage);
      ReleaseTile();
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        float product = sum[0][i / 4][i % 4];
        if constexpr (kSums == 2) product += sum[1][i / 4][i % 4];
        scores[i / 4][i % 4] =
            __fmaf_rn(Factor(a_k, i), product, scores[i / 4][i % 4]);
      }
    }
  }

  // Right operands of a step of 16 features.
  __device__ __forceinline__ void LoadKeys(uint32_t (&b)[kSixteens][4],
                                           const uint32_t (&stage)[kPages],
                                           int step, int k_groups) {
    // Beyond D the query is zero, and any key of the token will do.
    const uint32_t column = (2 * step < k_groups ? 32 * step : 0) ^ k_swap_;
#pragma unroll
    for (int n = 0; n < kSixteens; ++n) {
      LoadMatrices(b[n], stage[n / kPart] + k_row_ + column +
                             n % kPart * 256 * k_groups);
    }
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
      float all[kWarps];
      SharedRow(shared_.maxima, i, all);
      float max = state_.max[i];
#pragma unroll
      for (int part = 0; part < kWarps; ++part) max = fmaxf(max, all[part]);
      scale[i] = ScalesFor(state_.max[i], state_.max[i], max).running;
      state_.max[i] = max;
    }
  }

  // out += (weights ∘ A_v) · B_v of the next rank. Tokens from `visible` on
  // have weight zero, and nobody may have written their factors.
  __device__ __forceinline__ void AddValues(
      const float (&weights)[2 * kSixteens][4], int buffer, int visible) {
    uint32_t stage[kPages];
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      stage[page] = ring_.WaitFull(page);
    }
    uint32_t a_v[kSixteens][4];
    LoadA(a_v, stage);
    if (visible < 64 * kPages) {
#pragma unroll
      for (int n = 0; n < kSixteens; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int left = visible - Token(0, 8 * n + 4 * (i / 2));
          a_v[n][i] &= left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0u;
        }
      }
    }
    __syncwarp();  // what follows is for whole warps
    const uint32_t shared =
        shared_.weights + 2048 * kPages * (buffer * args_.groups + group_);
#pragma unroll
    for (int i = 0; i < 4 * kSixteens; ++i) {  // head row i % 2, tokens i / 2
      const int n = i / 2;
      const uint32_t pair = Half<T>::Pack(
          weights[n][i % 2 * 2] * Factor(a_v, 4 * n + i % 2 * 2),
          weights[n][i % 2 * 2 + 1] * Factor(a_v, 4 * n + i % 2 * 2 + 1));
      const uint32_t at = shared + 2048 * (n / (2 * kPart)) +
                          (weights_write_ ^ 16 * (n % (2 * kPart))) +
                          1024 * (i % 2);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
    }
    GroupBarrier();
    const uint32_t v_step = 32 * static_cast<uint32_t>(args_.layout.b_v_width);
    constexpr int kBuffers = 1 + kAhead;
    uint32_t a[kBuffers][4];
    uint32_t b[kBuffers][kBlocks][4];
    const auto load = [&](int step) {
      const int page = step / 4;
      LoadMatrices(a[step % kBuffers],
                   (shared + 2048 * page + weights_read_) ^ 32 * (step % 4));
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        LoadMatricesTransposed(
            b[step % kBuffers][block],
            stage[page] + v_offset_[block] + step % 4 * v_step);
      }
    };
    if (kAhead == 1) load(0);
#pragma unroll
    for (int step = 0; step < 4 * kPages; ++step) {  // of 16 tokens
      if (step + kAhead < 4 * kPages) load(step + kAhead);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint32_t(&v)[4] = b[step % kBuffers][block];
        Half<T>::Mma(out_[2 * block], a[step % kBuffers], v[0], v[1]);
        Half<T>::Mma(out_[2 * block + 1], a[step % kBuffers], v[2], v[3]);
      }
    }
    ReleaseTile();
  }

  __device__ __forceinline__ void AddSums(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float all[kWarps];
      SharedRow(shared_.sums, i, all);
      float sum = all[0];
#pragma unroll
      for (int part = 1; part < kWarps; ++part) sum += all[part];
      state_.sum[i] = __fmaf_rn(state_.sum[i], scale[i], sum);
    }
  }

  __device__ __forceinline__ void ReleaseTile() {
    __syncwarp();
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      ring_.Release();
    }
  }

  // A_k or A_v of this group's heads and this warp's tokens, as scores are laid
  // out.
  __device__ __forceinline__ void LoadA(uint32_t (&a)[kSixteens][4],
                                        const uint32_t (&stage)[kPages]) {
    const uint32_t sixteen = 32 * static_cast<uint32_t>(args_.layout.a_width);
#pragma unroll
    for (int n = 0; n < kSixteens; ++n) {
      LoadMatricesTransposed(
          a[n], stage[n / kPart] + a_offset_ + n % kPart * sixteen);
    }
  }
  // The factor that belongs to scores[i / 4][i % 4].
  __device__ __forceinline__ static float Factor(
      const uint32_t (&a)[kSixteens][4], int i) {
    const uint32_t pair = a[i / 8][i % 8 / 4 * 2 + i % 4 / 2];
    return i % 2 == 0 ? Half<T>::Low(pair) : Half<T>::High(pair);
  }
  // The token that scores[i / 4][i % 4] is of, in a tile at `position`.
  __device__ __forceinline__ int Token(int position, int i) const {
    const int n = i / 8;
    return position + 64 * (n / kPart) + 16 * (kPart * part_ + n % kPart) +
           8 * (i / 4 % 2) + lane_ % 4 * 2 + i % 2;
  }
  __device__ __forceinline__ int Swap(int groups) const {
    return (lane_ % 8 >> TpaPageLayout::SwizzleShift(groups)) &
           TpaPageLayout::SwizzleMask(groups);
  }

  __device__ __forceinline__ void GroupBarrier() {
    NamedBarrier(1 + group_, 32 * kWarps);
  }
  __device__ __forceinline__ float& ShareRow(float* shared, int i) {
    return shared[kWarps * (16 * group_ + lane_ / 4 + 8 * i) + part_];
  }
  __device__ __forceinline__ void SharedRow(const float* shared, int i,
                                            float (&all)[kWarps]) {
    const float2* row = reinterpret_cast<const float2*>(
        shared + kWarps * (16 * group_ + lane_ / 4 + 8 * i));
#pragma unroll
    for (int j = 0; j < kWarps / 2; ++j) {
      const float2 two = row[j];
      all[2 * j] = two.x;
      all[2 * j + 1] = two.y;
    }
  }
  __device__ __forceinline__ int Consumers() const {
    return 32 * kWarps * args_.groups;
  }

  // Merges the state at hand into `running`; both then hold the result.
  // `scales` is for the outputs.
  __device__ __forceinline__ void FoldState(State& running,
                                            FoldScales (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float max = fmaxf(running.max[i], state_.max[i]);
      scales[i] = ScalesFor(running.max[i], state_.max[i], max);
      state_.max[i] = max;
      state_.sum[i] = Fold(running.sum[i], state_.sum[i], scales[i]);
    }
    running = state_;
  }

  // Merges what is at hand into the segment's result and leaves that at hand.
  __device__ __forceinline__ void FoldIntoSegment(State& segment, bool first) {
    if (first) {
      segment = state_;
    } else {
      FoldScales scales[2];
      FoldState(segment, scales);
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        float& out = out_[j / 4][j % 4];
        out = Fold(segment_out_[j], out, scales[j % 4 / 2]);
      }
    }
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) segment_out_[j] = out_[j / 4][j % 4];
  }

  // The same with the row's result, whose outputs wait in shared memory.
  __device__ __forceinline__ void FoldIntoRow(State& total, bool first,
                                              bool last) {
    const int threads = Consumers();
    float* memory = shared_.work + threadIdx.x;
    if (first) {
      total = state_;
    } else {
      FoldScales scales[2];
      FoldState(total, scales);
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        float& out = out_[j / 4][j % 4];
        out = Fold(memory[j * threads], out, scales[j % 4 / 2]);
      }
    }
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

  // Whole segments have a place each; the chunks of others, the block's next.
  __device__ __forceinline__ int Slot(int row, int segment, bool loose) {
    const int max_segments = static_cast<int>(args_.scratch.max_segments);
    if (!loose) return row * max_segments + segment;
    return args_.p.rows * max_segments +
           2 * kTpaSegmentChunks * static_cast<int>(blockIdx.x) + loose_++;
  }
  __device__ __forceinline__ void NoteSlot(int row, int chunk, int slot) {
    if (threadIdx.x != 0 || blockIdx.y != 0) return;
    auto* slots = reinterpret_cast<int32_t*>(
        static_cast<char*>(args_.p.scratch) + args_.scratch.chunk_slot);
    slots[row * args_.scratch.max_chunks + chunk] = slot;
  }

  __device__ __forceinline__ void WritePartial(int row, int chunk, int slot) {
    NoteSlot(row, chunk, slot);
    char* scratch = static_cast<char*>(args_.p.scratch);
    auto* max_log_sum =
        reinterpret_cast<float2*>(scratch + args_.scratch.max_log_sum);
    auto* outputs = reinterpret_cast<float*>(scratch + args_.scratch.outputs);
    const int width = static_cast<int>(args_.scratch.slot_width);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (Head(i) < 0) continue;
      const int64_t at =
          slot * args_.scratch.slot_rows + 16 * pair_ + lane_ / 4 + 8 * i;
      if (part_ == 0 && lane_ % 4 == 0) {
        max_log_sum[at] = {state_.max[i], state_.sum[i]};
      }
      float* out = outputs + at * width;
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) {
        if (Feature(n) >= width) continue;
        *reinterpret_cast<float2*>(out + Feature(n)) = {out_[n][2 * i],
                                                        out_[n][2 * i + 1]};
      }
    }
  }

  __device__ __forceinline__ void WriteResult(int row) {
    const TpaCudaDecodeParams& p = args_.p;
    const int value_dim = static_cast<int>(p.shape.value_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (Head(i) < 0) continue;
      float* out = p.out + (int64_t{row} * p.new_tokens + t_) * p.out_stride +
                   Head(i) * value_dim;
      const float scale = Normalizer(state_.sum[i], kv_rank_);
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
  State state_;
  float out_[2 * kBlocks][4] = {};
  float segment_out_[kOutputs];
  uint32_t query_[kIs.query_in_registers ? kSteps : 1][kTerms][4];
  int loose_ = 0;
  const int lane_;
  const int part_;
  const int group_;
  const int pair_;
  const int head_group_;
  const int t_;
  const int kv_rank_;
  // Byte offsets of what this lane reads or writes: in a stage, and in a
  // group's weights.
  uint32_t a_offset_;
  uint32_t k_row_;
  uint32_t k_swap_;
  uint32_t v_offset_[kBlocks];
  uint32_t weights_write_;
  uint32_t weights_read_;
};

template <typename T, int kFeatures, int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    tpa_decode_kernel(const __grid_constant__ TpaDecodeArgs args) {
  using Worker = GroupWorker<T, kFeatures>;
  extern __shared__ __align__(128) char memory[];
  char* at = memory + args.stages * args.stage_bytes;
  Shared shared;
  shared.weights = SharedAddress(at);
  at += 2 * 2048 * Worker::kPages * args.groups;
  shared.terms = at;
  at += 2 * kTpaQueryTerms * 16 * args.groups * kFeatures;
  shared.maxima = reinterpret_cast<float*>(at);
  shared.sums = shared.maxima + 64 * args.groups;
  at += 512 * args.groups;
  const uint32_t barriers = SharedAddress(at);
  at += 16 * args.stages;
  shared.work = reinterpret_cast<float*>(at);
  const TpaRing ring(args, SharedAddress(memory), barriers);
  const int consumer_warps = Worker::kWarps * args.groups;
  if (threadIdx.x == 0) ring.Init(consumer_warps, args.bulk_copies);
  __syncthreads();
  LaunchDependents();
  const TpaRange range = FindRange(args, blockIdx.x, gridDim.x);
  const int warp = threadIdx.x / 32;
  if (warp >= consumer_warps) {
    if constexpr (Variant<kFeatures>::kMovesRegisters) ReleaseRegisters<40>();
    if (warp == consumer_warps) CopyTiles<Worker::kPages>(args, range, ring);
  } else {
    if constexpr (Variant<kFeatures>::kMovesRegisters) ClaimRegisters<232>();
    Worker(args, shared, ring).Run(range);
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename T, int kFeatures>
cudaError_t Launch(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                   cudaStream_t stream) {
  constexpr int kThreads = Variant<kFeatures>::kIs.max_threads();
  const auto kernel = tpa_decode_kernel<T, kFeatures, kThreads>;
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
