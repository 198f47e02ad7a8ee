#include <cuda.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/host_device.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/matmul/decode_matmul_order.h"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/matmul/product_chain_plan.h"

namespace recurve {
namespace {

constexpr int kWarps = kChainWarps;
constexpr int kThreads = 32 * kWarps;         // that multiply
constexpr int kBlockThreads = kThreads + 64;  // and two warps that copy
constexpr int kTile = kChainTile;
constexpr int kChunk = kChainChunk;
constexpr int kChunkBytes = kTile * kChunk * 2;
constexpr int kStageChunks = kChainStageChunks;
constexpr int kStageBytes = kChainStageBytes;
constexpr int kPhases = 4;
constexpr int kStamps = 24;
constexpr int kMaxPolls = 1 << 24;

enum PhaseId { kOut, kUp, kDown, kNext };

struct ChainArgs {
  ProductChainParams p;
  CUtensorMap maps[kPhases];
  int chunks[kPhases];  // of the inputs
  int tiles[kPhases];
  int slots;            // of the ring
  int row_bytes;        // of x in shared memory
  unsigned long long* tickets;
  uint2* out_words;     // [rows, width] value, epoch
  uint2* hidden_words;  // [rows, features / 2] two values, epoch
  uint2* down_words;
  int64_t width_stride;  // words
  int64_t hidden_stride;
};

// What a block does of a phase: stages of its copies stand in rounds, a stage
// of each of `lanes` warps a round.
struct Share {
  int tile;    // the first
  int lanes;   // warps with work; 0: none
  int rounds;
};

__device__ __forceinline__ Share ShareOf(const ChainArgs& a, int phase,
                                         int role) {
  const int grid = static_cast<int>(gridDim.x);
  Share s = {};
  const int chunks = a.chunks[phase];
  const int tiles = a.tiles[phase];
  if (phase == kUp) {
    const int each = tiles / grid;
    const int with_more = tiles - each * grid;  // the last ones
    const int more = max(0, role - (grid - with_more));
    s.tile = role * each + more;
    s.lanes = each + (role >= grid - with_more ? 1 : 0);
    s.rounds = (chunks + kStageChunks - 1) / kStageChunks;
    return s;
  }
  s.tile = phase == kNext ? role - (grid - tiles) : role;
  s.lanes = s.tile >= 0 && s.tile < tiles ? kWarps : 0;
  s.rounds = ((chunks + kWarps - 1) / kWarps + kStageChunks - 1) / kStageChunks;
  return s;
}

__device__ __forceinline__ int PartBegin(int chunks, int part) {
  return chunks * part / kWarps;
}

__device__ __forceinline__ void CopyStage(uint32_t to, const CUtensorMap& map,
                                          int x, int row, int chunk,
                                          uint32_t barrier) {
  asm volatile(
      "{ .reg .b64 policy;"
      "  createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
      "  cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %6, %5}], [%2], policy; }" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(row), "r"(chunk), "r"(0)
      : "memory");
}
__device__ __forceinline__ void PrefetchStage(const CUtensorMap& map, int row,
                                              int chunk) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %1, %3}];" ::
          "l"(&map),
      "r"(0), "r"(row), "r"(chunk)
      : "memory");
}
__device__ __forceinline__ bool TestBarrier(uint32_t barrier, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p;"
      "  mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
      "  selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void BoundedWait(uint32_t barrier, uint32_t phase) {
  for (int i = 0; !TestBarrier(barrier, phase); ++i) {
    if (i == kMaxPolls) __trap();
  }
}

// What a lane of a copying warp copies in a phase: the stages of one of the
// warps that multiply.
struct LaneCopies {
  int row;
  int chunk;
  int end;  // chunks
};
__device__ __forceinline__ LaneCopies LaneCopiesOf(const Share& share,
                                                   int chunks, bool up,
                                                   int lane) {
  if (up) return {(share.tile + lane) * (kTile / 2), 0, chunks};
  return {share.tile * kTile, PartBegin(chunks, lane),
          PartBegin(chunks, lane + 1)};
}

// 16 bytes of words as others write them.
__device__ __forceinline__ uint4 LoadWords(const uint2* from) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(from)
               : "memory");
  return make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                    static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32));
}
__device__ __forceinline__ void StoreWord(uint2* to, uint32_t value,
                                          uint32_t epoch) {
  const uint64_t word = value | static_cast<uint64_t>(epoch) << 32;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word)
               : "memory");
}

// kCount times 16 bytes, until the words of each that count have the epoch; v
// does not, before.
template <int kCount>
__device__ __forceinline__ void PollWords(const uint2* const (&from)[kCount],
                                          const int (&words)[kCount],
                                          uint32_t epoch, uint4 (&v)[kCount],
                                          int wait) {
  for (int polls = 0;; ++polls) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((words[i] > 0 && v[i].y != epoch) ||
          (words[i] > 1 && v[i].w != epoch)) {
        v[i] = LoadWords(from[i]);
        ready = false;
      }
    }
    if (ready || wait == 0) break;
    if (polls == kMaxPolls) __trap();
  }
}

__device__ __forceinline__ float4 LoadFour(const float* from, int c, int cols) {
  if (c + 4 <= cols) return *reinterpret_cast<const float4*>(from + c);
  float4 v = make_float4(0, 0, 0, 0);
  if (c < cols) v.x = from[c];
  if (c + 1 < cols) v.y = from[c + 1];
  if (c + 2 < cols) v.z = from[c + 2];
  return v;
}

template <typename T>
__device__ __forceinline__ uint4 LoadEight(const T* from, int c, int cols) {
  if (c + 8 <= cols) return *reinterpret_cast<const uint4*>(from + c);
  if (c >= cols) return make_uint4(0, 0, 0, 0);
  uint32_t words[4] = {};
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    if (c + j < cols) {
      words[j / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[c + j]}
                      << 16 * (j % 2);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ float AddSquares(const float4& v, float squares) {
  squares = fmaf(v.x, v.x, squares);
  squares = fmaf(v.y, v.y, squares);
  squares = fmaf(v.z, v.z, squares);
  return fmaf(v.w, v.w, squares);
}

__device__ __forceinline__ long long GlobalTime() {
  long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ void ConsumerBarrier() { NamedBarrier(1, kThreads); }

constexpr int kFours = 2;  // of columns of a normed row, a thread's

// Rows of words, normed, to shared memory, with the sums of norm.cu.
template <typename T, int kRows>
__device__ __forceinline__ void NormRows(const uint2* words, int64_t stride,
                                         int rows, int cols, int inputs,
                                         const float4 (&weight)[kFours],
                                         float eps, uint32_t epoch, char* to,
                                         int row_bytes, float* partial,
                                         int wait) {
  constexpr int kTogether = kRows < 2 ? kRows : 2;
  const auto column = [&](int i) {
    return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
  };
  float4 v[kRows][kFours];
#pragma unroll
  for (int first = 0; first < kRows; first += kTogether) {
    const uint2* from[2 * kFours * kTogether];
    int count[2 * kFours * kTogether];
    uint4 w[2 * kFours * kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int i = 0; i < 2 * kFours; ++i) {
        const int c = column(i / 2) + i % 2 * 2;
        from[2 * kFours * r + i] = words + (first + r) * stride + c;
        count[2 * kFours * r + i] = first + r < rows ? cols - c : 0;
        w[2 * kFours * r + i] = make_uint4(0, 0, 0, 0);
      }
    }
    PollWords(from, count, epoch, w, wait);
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int k = 2 * kFours * r + 2 * i;
        v[first + r][i] = make_float4(
            count[k] > 0 ? __uint_as_float(w[k].x) : 0.0f,
            count[k] > 1 ? __uint_as_float(w[k].z) : 0.0f,
            count[k + 1] > 0 ? __uint_as_float(w[k + 1].x) : 0.0f,
            count[k + 1] > 1 ? __uint_as_float(w[k + 1].z) : 0.0f);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) < cols) squares = AddSquares(v[r][i], squares);
    }
    squares = LaneSum(squares);
    if (threadIdx.x % 32 == 0) partial[r * kWarps + threadIdx.x / 32] = squares;
  }
  ConsumerBarrier();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[r * kWarps + w];
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (column(i) >= inputs) break;
      *reinterpret_cast<uint2*>(to + r * row_bytes + 2 * column(i)) =
          make_uint2(Half<T>::Pack(v[r][i].x * scale * weight[i].x,
                                   v[r][i].y * scale * weight[i].y),
                     Half<T>::Pack(v[r][i].z * scale * weight[i].z,
                                   v[r][i].w * scale * weight[i].w));
    }
  }
}

__device__ __forceinline__ void HiddenRow(const uint2* words, int features,
                                          int inputs, uint32_t epoch, char* to,
                                          int wait) {
  constexpr int kTogether = 5;
  const int all = (features + 1) / 2;
#pragma unroll 1
  for (int first = threadIdx.x; 4 * first < inputs;
       first += kTogether * kThreads) {
    const uint2* from[kTogether];
    int count[kTogether];
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = 2 * (first + i * kThreads);
      from[i] = words + at;
      count[i] = all - at;
      v[i] = make_uint4(0, 0, 0, 0);
    }
    PollWords(from, count, epoch, v, wait);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = 4 * (first + i * kThreads);
      if (at >= inputs) break;
      *reinterpret_cast<uint2*>(to + 2 * at) =
          make_uint2(count[i] > 0 ? v[i].x : 0, count[i] > 1 ? v[i].z : 0);
    }
  }
}

// Of a stage.
struct Fragments {
  uint32_t w[kStageChunks][4][4];
  uint32_t x[kStageChunks][2][4];
};

template <typename T, int kRows>
__global__ void __launch_bounds__(kBlockThreads, 1)
    product_chain(const __grid_constant__ ChainArgs a) {
  extern __shared__ __align__(1024) char memory[];
  const ProductChainParams& p = a.p;
  char* const rows_of_x = memory + a.slots * kStageBytes;
  const int rows = kRows == 1 ? 1 : static_cast<int>(p.rows);
  float* const sums =
      reinterpret_cast<float*>(rows_of_x + rows * a.row_bytes + kChainSlack);
  float* const partial = sums + kWarps * kTile * (kRows + 1);  // of norms
  const uint32_t barriers = SharedAddress(partial + kWarps * kRows);
  volatile uint32_t* const shared_ticket =
      reinterpret_cast<uint32_t*>(partial + kWarps * kRows) + 4 * a.slots;
  const auto full = [&](int slot) { return barriers + 16 * slot; };
  const auto empty = [&](int slot) { return barriers + 16 * slot + 8; };
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  long long* const stamps =
      p.stamps == nullptr ? nullptr : p.stamps + blockIdx.x * kStamps;
  const auto stamp = [&](int i) {
    if (stamps != nullptr && threadIdx.x == 0) stamps[i] = clock64();
  };
  stamp(0);

  if (threadIdx.x == 0) {
    const unsigned long long ticket = atomicAdd(a.tickets, 1ull);
    shared_ticket[0] = static_cast<uint32_t>(ticket % gridDim.x);
    shared_ticket[1] = static_cast<uint32_t>(ticket / gridDim.x) | 1u << 31;
    for (int i = 0; i < a.slots; ++i) {
      BarrierInit(full(i), 1);
      BarrierInit(empty(i), 1);
    }
    shared_ticket[2] = 0;
    BarrierInitFence();
  }
  __syncthreads();
  const int role = static_cast<int>(shared_ticket[0]);
  const uint32_t epoch = shared_ticket[1];
  LaunchDependents();

  if (warp == kWarps) {
    int base = 0, lap = 0;  // of the round's first stage
    uint64_t history = 0;   // of the last rounds: slot and parity of the last
    int done = 0;           // rounds
#pragma unroll 1
    for (int phase = 0; phase < kPhases; ++phase) {
      const Share share = ShareOf(a, phase, role);
      if (share.lanes == 0) continue;
      const CUtensorMap& map = a.maps[phase];
      LaneCopies my =
          LaneCopiesOf(share, a.chunks[phase], phase == kUp, lane);
      const int back = phase == kUp ? 2 * p.window : p.window;
#pragma unroll 1
      for (int round = 0; round < share.rounds; ++round) {
        if (done >= back) {
          const auto last = static_cast<uint32_t>(history >> 16 * (back - 1));
          BoundedWait(full((last & 0xffff) >> 1), last & 1);
        }
        if (lane < share.lanes) {
          int slot = base + lane;
          int my_lap = lap;
          if (slot >= a.slots) {
            slot -= a.slots;
            ++my_lap;
          }
          if (my_lap > 0) BoundedWait(empty(slot), (my_lap - 1) & 1);
          if (my.chunk < my.end) {
            BarrierExpect(full(slot), kStageBytes);
            CopyStage(SharedAddress(memory) + slot * kStageBytes, map, 0,
                      my.row, my.chunk, full(slot));
          } else {
            BarrierArrive(full(slot));
          }
        }
        __syncwarp();
        my.chunk += kStageChunks;
        ++done;
        base += share.lanes;
        if (base >= a.slots) {
          base -= a.slots;
          ++lap;
          if (stamps != nullptr && lap == 1 && lane == 0) stamps[20] = clock64();
        }
        const int last = base == 0 ? a.slots - 1 : base - 1;
        const int last_lap = base == 0 ? lap - 1 : lap;
        history = history << 16 | static_cast<uint32_t>(last << 1 | (last_lap & 1));
      }
    }
    return;
  }
  if (warp == kWarps + 1) {
    // What comes behind the ring, to the second-level cache, no faster than is
    // allowed.
    if (p.prefetch == 0) return;
    int all = 0;
    for (int phase = 0; phase < kPhases; ++phase) {
      const Share share = ShareOf(a, phase, role);
      all += share.lanes * share.rounds;
    }
    if (all <= a.slots) return;
    BoundedWait(full(a.slots - 1), 0);
    const long long begin = clock64();
    int at = 0;
#pragma unroll 1
    for (int phase = 0; phase < kPhases; ++phase) {
      const Share share = ShareOf(a, phase, role);
      if (share.lanes == 0) continue;
      const CUtensorMap& map = a.maps[phase];
      LaneCopies my =
          LaneCopiesOf(share, a.chunks[phase], phase == kUp, lane);
#pragma unroll 1
      for (int round = 0; round < share.rounds; ++round) {
        if (at >= a.slots) {
          if (at >= a.slots + p.prefetch || shared_ticket[2] != 0) return;
          while (clock64() - begin < int64_t{at - a.slots} * p.prefetch_gap) {
          }
          if (lane < share.lanes && my.chunk < my.end)
            PrefetchStage(map, my.row, my.chunk);
          __syncwarp();
        }
        at += share.lanes;
        my.chunk += kStageChunks;
      }
    }
    return;
  }

  float4 weights[2][kFours];  // of the two norms
#pragma unroll
  for (int i = 0; i < 2 * kFours; ++i) {
    const float* const norm = i < kFours ? p.up_norm : p.next_norm;
    weights[i / kFours][i % kFours] =
        norm == nullptr
            ? make_float4(1, 1, 1, 1)
            : LoadFour(norm,
                       4 * (static_cast<int>(threadIdx.x) +
                            i % kFours * kThreads),
                       static_cast<int>(p.width));
  }
  if (stamps != nullptr && threadIdx.x == 0) stamps[21] = GlobalTime();
  WaitForPrevious();
  if (stamps != nullptr && threadIdx.x == 0) stamps[22] = GlobalTime();
  stamp(1);
  if (threadIdx.x == 0) shared_ticket[2] = 1;
  const int out = role * kTile + static_cast<int>(threadIdx.x) % kTile;
  const int out_row = threadIdx.x / kTile;
  const bool writes = out_row < rows;
  float before = 0.0f;
  if (writes && role < a.tiles[kOut] && out < p.width)
    before = p.residual[out_row * p.residual_stride + out];

  // ldmatrix: rows 0-7 and 8-15 of a chunk, then of the next.
  const int w_row = lane % 16;
  const int w_chunk = lane / 16;
  const uint32_t x_lane = SharedAddress(rows_of_x) +
                          min(lane % 8, rows - 1) * a.row_bytes +
                          lane / 8 * 16;
  int base = 0, lap = 0;
#pragma unroll 1
  for (int phase = 0; phase < kPhases; ++phase) {
    const Share share = ShareOf(a, phase, role);
    if (share.lanes == 0) continue;
    const int chunks = a.chunks[phase];
    const int begin = phase == kUp ? 0 : PartBegin(chunks, warp);
    const int end = phase == kUp ? chunks : PartBegin(chunks, warp + 1);
    int slot = base + warp;
    uint32_t parity = lap & 1;
    if (slot >= a.slots) {
      slot -= a.slots;
      parity ^= 1;
    }
    base += share.lanes * share.rounds;
    while (base >= a.slots) {
      base -= a.slots;
      ++lap;
    }
    // ---- the row ----
    if (phase == kOut) {
      const int inputs = static_cast<int>(p.out_inputs);
      constexpr int kTogether = 3;
#pragma unroll 1
      for (int row = 0; row < rows; ++row) {
        const T* const x = static_cast<const T*>(p.x) + row * p.x_stride;
        char* const to = rows_of_x + row * a.row_bytes;
#pragma unroll 1
        for (int first = 8 * threadIdx.x; first < inputs;
             first += 8 * kTogether * kThreads) {
          uint4 v[kTogether];
#pragma unroll
          for (int i = 0; i < kTogether; ++i)
            v[i] = LoadEight(x, first + 8 * i * kThreads,
                             static_cast<int>(p.x_cols));
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            const int c = first + 8 * i * kThreads;
            if (c < inputs) *reinterpret_cast<uint4*>(to + 2 * c) = v[i];
          }
        }
      }
    } else if (phase == kDown) {
#pragma unroll 1
      for (int row = 0; row < rows; ++row) {
        HiddenRow(a.hidden_words + row * a.hidden_stride,
                  static_cast<int>(p.down_cols), static_cast<int>(p.down_inputs),
                  epoch, rows_of_x + row * a.row_bytes, p.wait);
      }
    } else {
      const bool up = phase == kUp;
      float4 weight[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i) weight[i] = up ? weights[0][i] : weights[1][i];
      NormRows<T, kRows>(up ? a.out_words : a.down_words, a.width_stride, rows,
                         static_cast<int>(p.width),
                         static_cast<int>(up ? p.up_inputs : p.next_inputs),
                         weight, up ? p.up_eps : p.next_eps, epoch, rows_of_x,
                         a.row_bytes, partial, p.wait);
    }
    ConsumerBarrier();
    stamp(2 + 4 * phase);

    // ---- multiplying ----
    float acc[4] = {};
    if (warp < share.lanes) {
      uint32_t x_at = x_lane + 2 * kChunk * begin;
      const auto read = [&](Fragments& f) {
        BoundedWait(full(slot), parity);
        const uint32_t from =
            SharedAddress(memory) + slot * kStageBytes + w_row * 128;
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            LoadMatrices(f.w[c][j],
                         from + c * kChunkBytes +
                             ((2 * j + w_chunk) ^ w_row % 8) * 16);
          }
          LoadMatrices(f.x[c][0], x_at + 2 * kChunk * c);
          LoadMatrices(f.x[c][1], x_at + 2 * kChunk * c + 64);
        }
        __syncwarp();
        if (lane == 0) BarrierArrive(empty(slot));
        x_at += 2 * kChunk * kStageChunks;
        slot += share.lanes;
        if (slot >= a.slots) {
          slot -= a.slots;
          parity ^= 1;
        }
      };
      const auto multiply = [&](const Fragments& f, int round) {
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
          if (begin + round * kStageChunks + c >= end) break;
          Half<T>::Mma(acc, f.w[c][0], f.x[c][0][0], f.x[c][0][1]);
          Half<T>::Mma(acc, f.w[c][1], f.x[c][0][2], f.x[c][0][3]);
          Half<T>::Mma(acc, f.w[c][2], f.x[c][1][0], f.x[c][1][1]);
          Half<T>::Mma(acc, f.w[c][3], f.x[c][1][2], f.x[c][1][3]);
        }
      };
      Fragments even, odd;
      read(even);
#pragma unroll 1
      for (int round = 0; round < share.rounds; round += 2) {
        if (round + 1 < share.rounds) read(odd);
        multiply(even, round);
        if (round + 2 < share.rounds) read(even);
        if (round + 1 < share.rounds) multiply(odd, round + 1);
      }
    }
    stamp(3 + 4 * phase);

    // ---- results ----
    const int g = lane / 4;
    const int t = lane % 4;
    if (phase == kUp) {
      if (warp < share.lanes) {
        const int feature = (share.tile + warp) * (kTile / 2) + g;
#pragma unroll
        for (int j = 0; j < (kRows == 1 ? 1 : 2); ++j) {
          float value = DeviceActivate(p.activation, acc[j]) * acc[2 + j];
          if (feature >= p.features) value = 0.0f;
          const float other = __shfl_down_sync(0xffffffffu, value, 4);
          const int row = 2 * t + j;
          if (g % 2 == 0 && row < rows && feature < p.features) {
            StoreWord(a.hidden_words + row * a.hidden_stride + feature / 2,
                      Half<T>::Pack(value, other), epoch);
          }
        }
      }
      // Shared memory is free for the next row.
      ConsumerBarrier();
    } else {
      float* const mine = sums + warp * kTile * (kRows + 1);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (2 * t + j % 2 < kRows)
          mine[(g + j / 2 * 8) * (kRows + 1) + 2 * t + j % 2] = acc[j];
      }
      ConsumerBarrier();
      if (writes) {
        const int o = threadIdx.x % kTile;
        float total = sums[o * (kRows + 1) + out_row];
#pragma unroll
        for (int s = 1; s < kWarps; ++s)
          total += sums[(s * kTile + o) * (kRows + 1) + out_row];
        if (phase == kNext) {
          const int output = share.tile * kTile + o;
          if (output < p.next_outputs)
            p.y[out_row * p.y_stride + output] = total;
        } else if (out < p.width) {
          before += total;
          StoreWord((phase == kOut ? a.out_words : a.down_words) +
                        out_row * a.width_stride + out,
                    __float_as_uint(before), epoch);
          if (phase == kDown)
            p.residual[out_row * p.residual_stride + out] = before;
        }
      }
      __syncwarp();
    }
    stamp(4 + 4 * phase);
  }
  stamp(19);
}

cudaError_t Encode(const void* w, int64_t outputs, int64_t inputs, bool gate,
                   bool promote, CUtensorMap* map) {
  using Function = decltype(&cuTensorMapEncodeTiled);
  static const Function encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                         12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      entry = nullptr;
    }
    return reinterpret_cast<Function>(entry);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const auto u = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  const int64_t planes = gate ? 2 : 1;
  const cuuint64_t sizes[4] = {kChunk, u(outputs / planes), u(planes),
                               u(inputs / kChunk)};
  const cuuint64_t strides[3] = {u(2 * inputs), u(2 * inputs * (outputs / planes)),
                                 2 * kChunk};
  const cuuint32_t box[4] = {kChunk, static_cast<cuuint32_t>(kTile / planes),
                             static_cast<cuuint32_t>(planes), kStageChunks};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(w),
                sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B,
                promote ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                        : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

constexpr int64_t kMaxShared = 227 * 1024;  // of a block on sm_90

int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Of the current device; none unless it is a Hopper.
cudaError_t Multiprocessors(int* count) {
  int device = 0;
  int major = 0;
  *count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                   device);
  }
  if (error != cudaSuccess || major != 9) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

ProductChainPlan PlanOf(const ProductChainParams& p, int multiprocessors) {
  if (p.type == WeightType::kFloat32 ||
      p.activation == Activation::kSoftmax || p.x_cols < 0 ||
      p.x_cols > p.out_inputs || p.x_stride % 8 != 0 || !Aligned(p.x) ||
      !Aligned(p.up_norm) || !Aligned(p.next_norm) ||
      p.down_cols > p.features || p.down_cols > p.down_inputs) {
    return {};
  }
  return PlanProductChain(
      {p.rows, p.width, p.out_inputs, p.features, p.up_inputs, p.down_inputs,
       p.next == nullptr ? 0 : p.next_outputs, p.next_inputs},
      multiprocessors, kMaxShared);
}

}  // namespace

bool ProductChainTakes(const ProductChainParams& p) {
  int multiprocessors = 0;
  return Multiprocessors(&multiprocessors) == cudaSuccess &&
         PlanOf(p, multiprocessors).slots > 0;
}

cudaError_t LaunchProductChain(const ProductChainParams& p,
                               cudaStream_t stream) {
  int multiprocessors = 0;
  cudaError_t error = Multiprocessors(&multiprocessors);
  if (error != cudaSuccess) return error;
  const ProductChainPlan plan = PlanOf(p, multiprocessors);
  if (plan.slots == 0) return cudaErrorInvalidValue;
  ChainArgs a = {};
  a.p = p;
  a.slots = plan.slots;
  a.row_bytes = plan.row_bytes;
  const void* const w[kPhases] = {p.out, p.up, p.down, p.next};
  const int64_t outputs[kPhases] = {p.width, 2 * p.features, p.width,
                                    p.next_outputs};
  const int64_t inputs[kPhases] = {p.out_inputs, p.up_inputs, p.down_inputs,
                                   p.next_inputs};
  for (int i = 0; i < kPhases; ++i) {
    if (w[i] == nullptr) continue;
    error = Encode(w[i], outputs[i], inputs[i], i == kUp, p.boxes == 3,
                   &a.maps[i]);
    if (error != cudaSuccess) return error;
    a.chunks[i] = static_cast<int>(inputs[i] / kChunk);
    a.tiles[i] = static_cast<int>((outputs[i] + kTile - 1) / kTile);
  }
  a.tiles[kUp] = static_cast<int>((p.features + kTile / 2 - 1) / (kTile / 2));
  a.tickets = static_cast<unsigned long long*>(p.exchange);
  a.out_words = reinterpret_cast<uint2*>(static_cast<char*>(p.exchange) + 128);
  a.width_stride = RoundUp(p.width, 16);
  a.hidden_stride = RoundUp(p.features, 16) / 2;
  a.down_words = a.out_words + p.rows * a.width_stride;
  a.hidden_words = a.down_words + p.rows * a.width_stride;
  const auto kernel =
      p.type == WeightType::kBFloat16
          ? (p.rows == 1 ? product_chain<__nv_bfloat16, 1>
                         : product_chain<__nv_bfloat16, 8>)
          : (p.rows == 1 ? product_chain<__half, 1> : product_chain<__half, 8>);
  const auto bytes = static_cast<int>(plan.bytes);
  error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(multiprocessors)),
                         kBlockThreads, static_cast<size_t>(bytes), stream, a);
}

}  // namespace recurve
