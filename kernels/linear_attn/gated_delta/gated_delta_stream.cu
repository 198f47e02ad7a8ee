// Gated delta rule for generated tokens of many heads: one block a
// multiprocessor goes through its share of the heads. A warp brings states into
// three buffers and back, by bulk copies, and finds the units. Eight warps
// compute as in gated_delta_step.cu, with other inputs loaded one head ahead:
// so memory is busy while a head is computed. A block has all value heads of a
// key head and sequence; a thread reads the last inputs that it writes, and no
// other thread does.
// Shapes and floor: those of gated_delta_step.cu.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/common/host_device.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_stream.h"

namespace recurve {
namespace {

using delta_step::kClasses;
using delta_step::kLast;
using delta_step::Row;

constexpr int kColumns = kDeltaStepColumns;
constexpr int kBuffers = kDeltaStreamBuffers;
constexpr int kComputing = 2 * kColumns;   // threads
constexpr int kThreads = kComputing + 32;  // and the warp that helps them
constexpr int kTogether = 8;               // rows
constexpr uint32_t kCopied = 16384;        // bytes of a bulk copy, at most
// A token's rows are written while the last ones are in use.
constexpr int kRowSets = 2;

using Inputs = delta_step::Channels<kColumns, kDeltaStreamMaxDim>;
constexpr int kCount = Inputs::kCount;
constexpr int kValue = Inputs::kKeys;  // the input of v
static_assert(Inputs::kKeys == 1 && Inputs::kThreads == kComputing);

// Barriers of the block: 0 is __syncthreads.
enum Named {
  kRowsWritten = 1,  // all threads
  kSumsWritten,      // all threads
  kDeltasWritten,    // those that compute
};

struct StreamShape {
  int dim, width;  // D, E
  int ratio;       // value heads of a key head
  int key_heads;
  int64_t groups;  // key heads of all sequences
};

// What the helping warp does for a token.
enum Signal { kToken, kNextHead, kDone };

struct StreamShared {
  uint64_t arrived[kBuffers];
  delta_step::Units units;
  float beta;
  int signal;
  float warp_squares[kColumns / 32];
  // Sums of Sᵀk and Sᵀq by class; then the first ones are k's share of the
  // update.
  alignas(16) float partial[kClasses][2][kColumns];
  Row rows[kRowSets][kDeltaStreamMaxDim];
};

RECURVE_HOST_DEVICE constexpr int StateBytes(const StreamShape& s) {
  return 4 * s.dim * s.width;
}
static_assert(kBuffers * 4 * kDeltaStreamMaxDim * kDeltaStreamMaxDim +
                  sizeof(StreamShared) <=
              227 * 1024);

// A block's heads in order: value heads of a key head, key heads of a sequence,
// sequences.
struct Walk {
  __device__ Walk(const StreamShape& s) {
    const int64_t first = s.groups * blockIdx.x / gridDim.x;
    const int64_t stop = s.groups * (blockIdx.x + 1) / gridDim.x;
    left = static_cast<int>(stop - first) * s.ratio;
    sequence = static_cast<int>(first / s.key_heads);
    key = static_cast<int>(first % s.key_heads);
    member = 0;
  }
  __device__ int Head(const StreamShape& s) const {
    return key * s.ratio + member;
  }
  __device__ void Next(const StreamShape& s) {
    --left;
    if (++member < s.ratio) return;
    member = 0;
    if (++key < s.key_heads) return;
    key = 0;
    ++sequence;
  }

  int left;  // heads, this one included
  int sequence, key, member;
};

// Where the sequence of a head is.
struct Place {
  int slot = 0, begin = 0, end = 0;

  // Otherwise there is no state to read or write.
  __device__ bool IsLive() const { return slot != 0 && begin < end; }
};
__device__ __forceinline__ Place FindPlace(const GatedDeltaParams& p,
                                           const Walk& walk) {
  Place place;
  if (walk.left <= 0) return place;
  place.slot = LoadNow(p.slots + walk.sequence);
  place.begin = LoadNow(p.query_start + walk.sequence);
  place.end = LoadNow(p.query_start + walk.sequence + 1);
  return place;
}

// ---- the helping warp ----

// The block's live heads in order: the memory of their states, and buffers.
struct States {
  __device__ States(const GatedDeltaParams& params, const StreamShape& shape,
                    float* all_cells)
      : p(params),
        s(shape),
        cells(all_cells),
        walk(shape),
        place(FindPlace(params, walk)) {
    Find();
  }
  __device__ bool IsThere() const { return walk.left > 0; }
  __device__ float* State() const {
    return p.states + int64_t{place.slot} * p.slot_stride +
           int64_t{walk.Head(s)} * s.dim * s.width;
  }
  __device__ uint32_t Cells() const {
    return SharedAddress(cells + buffer * s.dim * s.width);
  }
  __device__ void Next() {
    buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
    Step();
    Find();
  }

  const GatedDeltaParams& p;
  const StreamShape& s;
  float* const cells;
  Walk walk;
  Place place;
  int buffer = 0;

 private:
  __device__ void Step() {
    walk.Next(s);
    place = FindPlace(p, walk);
  }
  __device__ void Find() {
    while (walk.left > 0 && !place.IsLive()) Step();
  }
};

// By one lane. In pieces: other blocks' copies come in between.
__device__ __forceinline__ void LoadState(const States& of, StreamShared& sh) {
  const uint32_t bytes = StateBytes(of.s);
  const uint32_t arrived = SharedAddress(&sh.arrived[of.buffer]);
  BarrierExpect(arrived, bytes);
  for (uint32_t at = 0; at < bytes; at += kCopied) {
    BulkCopy(of.Cells() + at, of.State() + at / 4, min(kCopied, bytes - at),
             arrived);
  }
}
__device__ __forceinline__ void StoreState(const States& of) {
  const uint32_t bytes = StateBytes(of.s);
  for (uint32_t at = 0; at < bytes; at += kCopied) {
    BulkStore(of.State() + at / 4, of.Cells() + at, min(kCopied, bytes - at));
  }
}

__device__ __forceinline__ void Help(const GatedDeltaParams& p,
                                     const StreamShape& s, StreamShared& sh,
                                     float* cells) {
  // Stores are this lane's. They follow kRowsWritten, and so the others' wait
  // for the previous kernel.
  const bool copies = threadIdx.x % 32 == 0;
  States load(p, s, cells);
  States store = load;
  for (int i = 0; i < kBuffers && load.IsThere(); ++i) {
    if (copies) LoadState(load, sh);
    load.Next();
  }
  for (int step = 0;; ++step) {
    NamedBarrier(kRowsWritten, kThreads);
    const int signal = sh.signal;
    const bool stores = signal == kNextHead || (signal == kDone && step > 0);
    if (stores && copies) StoreState(store);
    if (signal == kDone) {
      if (copies) BulkStoreWait();
      return;
    }
    const delta_step::Units units =
        delta_step::FindUnits(p, s.dim, sh.rows[step % kRowSets]);
    if (copies) sh.units = units;
    NamedBarrierArrive(kSumsWritten, kThreads);
    if (!stores) continue;
    store.Next();
    if (!load.IsThere()) continue;
    if (copies) {
      BulkStoreReadWait();  // then the last head's buffer is free
      LoadState(load, sh);
    }
    load.Next();
  }
}

// ---- the others ----

// A thread's values of a head as they are in memory: nothing waits for them
// before they are used.
template <typename T>
struct Values {
  // What no kernel before this one writes, if `early`.
  __device__ void LoadKept(const GatedDeltaStepParams& params,
                           const Inputs& inputs, int slot, int head) {
    const GatedDeltaParams& p = params.of;
    if (params.conv_weight != nullptr) {
      const int width = static_cast<int>(params.conv_width);
      const int64_t channels =
          2 * p.key_heads * p.head_dim + p.value_heads * p.value_dim;
      const T* const last = static_cast<const T*>(params.conv_states) +
                            slot * params.conv_slot_stride;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (!inputs.Has(j)) continue;
        const int channel = inputs.Channel(j);
#pragma unroll
        for (int i = 0; i < kLast; ++i) {
          if (i + 1 < width) window[j][i] = last[i * channels + channel];
        }
#pragma unroll
        for (int i = 0; i <= kLast; ++i) {
          if (i < width) {
            weight[j][i] = params.conv_weight[int64_t{channel} * width + i];
          }
        }
        if (params.conv_bias != nullptr) bias[j] = params.conv_bias[channel];
      }
    }
    if (params.norm_weight != nullptr && inputs.has_value) {
      norm_weight = params.norm_weight[threadIdx.x];
    }
    if (p.gate.decay != DeltaDecay::kLog) a_log = p.gate.a_log[head];
    decay_bias = DeltaBias(p.gate, inputs.DecayAt(0, head));
  }
  __device__ void LoadToken(const GatedDeltaStepParams& params,
                            const Inputs& inputs, int row, int head) {
    const GatedDeltaParams& p = params.of;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (inputs.Has(j)) x[j] = inputs.template Load<T>(row, j);
    }
    raw = (static_cast<const T*>(p.a) +
           row * p.a_stride)[inputs.DecayAt(0, head)];
    beta = (static_cast<const T*>(p.b) + row * p.b_stride)[head];
    if (params.norm_weight != nullptr && inputs.has_value) {
      z = (static_cast<const T*>(params.z) +
           row * params.z_stride)[inputs.value];
    }
  }

  T window[kCount][kLast] = {};  // last inputs, oldest first
  float weight[kCount][kLast + 1] = {};
  float bias[kCount] = {};
  float norm_weight = 0.0f, a_log = 0.0f, decay_bias = 0.0f;
  T x[kCount] = {};
  T raw = {}, beta = {}, z = {};
};

// In one instruction, which the compiler would divide.
__device__ __forceinline__ Row LoadRow(const Row* row) {
  Row of;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(of.decay), "=f"(of.k), "=f"(of.q), "=f"(of.unused)
               : "r"(SharedAddress(row)));
  return of;
}

// Sums over a thread's rows, `count` of one class, `pitch` elements apart.
__device__ __forceinline__ void AddRows(const float* cells, const Row* rows,
                                        int count, int pitch, float4& keys,
                                        float4& queries) {
  const auto add = [&] {
    delta_step::AddRow(*reinterpret_cast<const float4*>(cells), LoadRow(rows),
                       keys, queries);
    cells += pitch;
    rows += kClasses;
  };
#pragma unroll 1
  for (; count >= kTogether; count -= kTogether) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) add();
  }
#pragma unroll 1
  for (; count > 0; --count) add();
}

// Updates them: rows together, so that loads do not wait for stores.
__device__ __forceinline__ void UpdateRows(float* cells, const Row* rows,
                                           int count, int pitch,
                                           const float4& delta) {
#pragma unroll 1
  for (; count >= kTogether; count -= kTogether) {
    float4 next[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      next[i] = delta_step::UpdatedRow(
          *reinterpret_cast<const float4*>(cells + i * pitch),
          LoadRow(rows + i * kClasses), delta);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      *reinterpret_cast<float4*>(cells + i * pitch) = next[i];
    }
    cells += kTogether * pitch;
    rows += kTogether * kClasses;
  }
#pragma unroll 1
  for (; count > 0; --count) {
    auto* const cell = reinterpret_cast<float4*>(cells);
    *cell = delta_step::UpdatedRow(*cell, LoadRow(rows), delta);
    cells += pitch;
    rows += kClasses;
  }
}

template <typename T>
struct Computer {
  // All heads of the block.
  __device__ void Run(bool early) {
    Walk walk(s);
    Place place = FindPlace(params.of, walk);
    Values<T> values;
    {
      const Inputs inputs(params, s.ratio, walk.Head(s), 0);
      if (place.IsLive()) {
        values.LoadKept(params, inputs, place.slot, walk.Head(s));
      }
      if (early) WaitForPrevious();
      if (place.IsLive()) {
        values.LoadToken(params, inputs, place.begin, walk.Head(s));
      }
    }
    while (walk.left > 0) {
      Walk after = walk;
      after.Next(s);
      const Place next = FindPlace(params.of, after);
      Values<T> ahead;
      const auto load_ahead = [&] {
        if (!next.IsLive()) return;
        const Inputs inputs(params, s.ratio, after.Head(s), 0);
        ahead.LoadKept(params, inputs, next.slot, after.Head(s));
        ahead.LoadToken(params, inputs, next.begin, after.Head(s));
      };
      if (place.IsLive()) {
        ComputeHead(walk, place, values, load_ahead);
      } else {
        load_ahead();
        const Inputs inputs(params, s.ratio, walk.Head(s), 0);
        for (int row = place.begin; row < place.end; ++row) {
          if (inputs.has_value) inputs.Write(row, 0.0f);
        }
      }
      walk = after;
      place = next;
      values = ahead;
    }
    if (threadIdx.x == 0) sh.signal = kDone;
    NamedBarrier(kRowsWritten, kThreads);
  }

  template <typename LoadAhead>
  __device__ __forceinline__ void ComputeHead(const Walk& walk,
                                              const Place& place,
                                              Values<T>& values,
                                              const LoadAhead& load_ahead) {
    const GatedDeltaParams& p = params.of;
    const int tid = threadIdx.x;
    const int head = walk.Head(s);
    const int own = tid % (kColumns / 4) * 4;
    const int row_class = tid / (kColumns / 4);
    const bool exists = own < s.width;
    const bool norms = params.norm_weight != nullptr;
    const Inputs inputs(params, s.ratio, head, 0);
    // The thread's rows and columns.
    const int own_rows = (s.dim - row_class + kClasses - 1) / kClasses;
    const int pitch = kClasses * s.width;
    const int first = row_class * s.width + own;
    float* const own_cells = cells + buffer * s.dim * s.width + first;
    float* const deltas = sh.partial[0][0];
    float window[kCount][kLast];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
#pragma unroll
      for (int i = 0; i < kLast; ++i) {
        window[j][i] = ToFloat(values.window[j][i]);
      }
    }
    const float speed = DeltaSpeedOf(p.gate, values.a_log);

    for (int row = place.begin; row < place.end; ++row) {
      if (row > place.begin) values.LoadToken(params, inputs, row, head);
      float x[kCount];
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] = ToFloat(values.x[j]);
      const float z = ToFloat(values.z);
      if (params.conv_weight != nullptr) {
        delta_step::Convolve(static_cast<int>(params.conv_width), values.weight,
                             values.bias, window, x);
      }
      Row* const rows = sh.rows[step % kRowSets];
      const int i = inputs.Index(0);
      if (i < s.dim) {
        rows[i].q = x[0];
        rows[i].decay = expf(DeltaLogDecayOf(
            p.gate, speed, ToFloat(values.raw) + values.decay_bias));
      } else if (i < 2 * s.dim) {
        rows[i - s.dim].k = x[0];
      }
      if (tid == 0) {
        sh.beta = DeltaBeta(p.gate, ToFloat(values.beta));
        sh.signal = row == place.begin && step > 0 ? kNextHead : kToken;
      }
      ++step;
      NamedBarrier(kRowsWritten, kThreads);

      float4 keys = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      float4 queries = keys;
      if (row == place.begin) {
        BarrierWait(SharedAddress(&sh.arrived[buffer]), phase);
      }
      if (exists) {
        AddRows(own_cells, rows + row_class, own_rows, pitch, keys, queries);
      }
      *reinterpret_cast<float4*>(&sh.partial[row_class][0][own]) = keys;
      *reinterpret_cast<float4*>(&sh.partial[row_class][1][own]) = queries;
      if (row + 1 == place.end) load_ahead();
      NamedBarrier(kSumsWritten, kThreads);
      float out = 0.0f;
      if (tid < kColumns) {
        // deltas[tid]: partial[0][0][tid], which no other thread has read.
        out = delta_step::FinishColumn<kColumns>(
            sh.partial, tid, sh.units, sh.beta, x[kValue], &deltas[tid]);
        if (norms) {
          const float squares = LaneSum(out * out);
          if (tid % 32 == 0) sh.warp_squares[tid / 32] = squares;
        } else if (inputs.has_value) {
          inputs.Write(row, out);
        }
      }
      NamedBarrier(kDeltasWritten, kComputing);
      if (exists) {
        const float4 delta = *reinterpret_cast<const float4*>(deltas + own);
        UpdateRows(own_cells, rows + row_class, own_rows, pitch, delta);
      }
      if (norms && inputs.has_value) {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns / 64; ++j) {
          squares += sh.warp_squares[2 * j] + sh.warp_squares[2 * j + 1];
        }
        inputs.Write(row, delta_step::GatedNormOf(params, squares, s.width, out,
                                                  values.norm_weight, z));
      }
    }
    BulkCopyFence();  // before the copy back
    if (++buffer == kBuffers) {
      buffer = 0;
      phase ^= 1;
    }
    if (params.conv_weight != nullptr) {
      WriteLast(inputs, place.slot, walk.member + 1 == s.ratio, window);
    }
  }

  // Those of q and k after the key head's last value head. Each was read by
  // the thread that writes it, and by no other.
  __device__ __forceinline__ void WriteLast(
      const Inputs& inputs, int slot, bool keys,
      const float (&window)[kCount][kLast]) const {
    const GatedDeltaParams& p = params.of;
    const int64_t channels =
        2 * p.key_heads * p.head_dim + p.value_heads * p.value_dim;
    T* const last =
        static_cast<T*>(params.conv_states) + slot * params.conv_slot_stride;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (!inputs.Has(j) || (j < kValue && !keys)) continue;
#pragma unroll
      for (int i = 0; i < kLast; ++i) {
        if (i + 1 < params.conv_width) {
          last[i * channels + inputs.Channel(j)] = FromFloat<T>(window[j][i]);
        }
      }
    }
  }

  const GatedDeltaStepParams& params;
  const StreamShape& s;
  StreamShared& sh;
  float* const cells;
  int step = 0;        // tokens before this one
  int buffer = 0;      // of the head
  uint32_t phase = 0;  // of its barrier
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    delta_stream_kernel(const __grid_constant__ GatedDeltaStepParams params,
                        const __grid_constant__ StreamShape s, bool early) {
  LaunchDependents();
  extern __shared__ __align__(128) char stream_memory[];
  __shared__ __align__(16) StreamShared sh;
  float* const cells = reinterpret_cast<float*>(stream_memory);
  if (threadIdx.x == 0) {
    for (uint64_t& arrived : sh.arrived)
      BarrierInit(SharedAddress(&arrived), 1);
    BarrierInitFence();
  }
  __syncthreads();
  if (!early) WaitForPrevious();
  if (threadIdx.x >= kComputing) {
    Help(params.of, s, sh, cells);
  } else {
    Computer<T>{params, s, sh, cells}.Run(early);
  }
}

template <typename T>
cudaError_t Launch(const GatedDeltaStepParams& params, const StreamShape& s,
                   bool early, int multiprocessors, cudaStream_t stream) {
  const int bytes = kBuffers * StateBytes(s);
  const auto kernel = delta_stream_kernel<T>;
  const cudaError_t error = PrepareHopperKernel(kernel, bytes);
  if (error != cudaSuccess) return error;
  const auto blocks = std::min<int64_t>(s.groups, multiprocessors);
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                         bytes, stream, params, s, early);
}

}  // namespace

cudaError_t LaunchGatedDeltaStream(const GatedDeltaStepParams& params,
                                   bool early, int multiprocessors,
                                   cudaStream_t stream) {
  const GatedDeltaParams& p = params.of;
  StreamShape s = {};
  s.dim = static_cast<int>(p.head_dim);
  s.width = static_cast<int>(p.value_dim);
  s.ratio = static_cast<int>(p.value_heads / p.key_heads);
  s.key_heads = static_cast<int>(p.key_heads);
  s.groups = p.key_heads * p.sequences;
  return p.type == ElementType::kFloat32
             ? Launch<float>(params, s, early, multiprocessors, stream)
             : Launch<__nv_bfloat16>(params, s, early, multiprocessors, stream);
}

}  // namespace recurve
