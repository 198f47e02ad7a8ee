// A consumer warp of product_chain.cu: multiplies its stages of the ring buffer
// by rows in shared memory.
#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_MULTIPLY_CUH_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_MULTIPLY_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/matmul/product_chain_copy.cuh"
#include "kernels/matmul/product_chain_plan.h"

namespace recurve {
namespace chain {

// A warp's unread stages of one product.
struct Stages {
  int left;
  int lanes;        // slots between two of them
  int slot;         // of the next one
  uint32_t parity;  // of its copy

  __device__ __forceinline__ void Wrap(int slots) {
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1;
  }
  __device__ __forceinline__ void Advance(int slots) {
    --left;
    slot += lanes;
    Wrap(slots);
  }
};

// One product after the other: Begin; Keep and KeepIfThere, until there are
// rows; Multiply. By all lanes of a warp together.
template <typename T, int kKept>
class Multiplier {
 public:
  // Shared memory: the ring buffer, its barriers as in CopyShare, and the
  // lane's row, 16 bytes further for every 8 lanes. `zero` is 0, unknown to the
  // compiler.
  __device__ __forceinline__ Multiplier(uint32_t ring, uint32_t barriers,
                                        int slots, uint32_t row, uint32_t zero)
      : ring_(ring),
        barriers_(barriers),
        slots_(slots),
        row_(row),
        zero_(zero),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Begin(Stages stages) {
    stages.Wrap(slots_);
    stages_ = stages;
    kept_ = 0;
  }

  // Whether a stage may go to registers.
  __device__ __forceinline__ bool CanKeep() const {
    return stages_.left > 0 && kept_ < kKept;
  }
  // REQUIRES: CanKeep().
  __device__ __forceinline__ void Keep() {
    BarrierWait(Full(), stages_.parity);
    TakeNext();
  }
  // All stages of earlier products have been read, and the ring buffer is
  // longer than the kept stages: the barrier is at this stage's copy, or past
  // it.
  __device__ __forceinline__ void KeepIfThere() {
    if (CanKeep() &&
        __all_sync(0xffffffffu, BarrierDone(Full(), stages_.parity))) {
      TakeNext();
    }
  }

  // Adds to acc the product with the rows' chunks [begin, end); `rounds` stages
  // hold these, the last possibly in part or not at all. acc[0] and acc[1] are
  // output lane / 4 of rows 2 (lane % 4) and the next, acc[2] and acc[3] output
  // 8 + lane / 4.
  __device__ __forceinline__ void Multiply(int begin, int end, int rounds,
                                           float (&acc)[4]) {
    MultiplyKept(begin, end, acc);
    if (stages_.left == 0) return;
    row_at_ = RowAt(begin + kept_ * kStageChunks);
    const int last = begin + rounds * kStageChunks - end;  // chunks beyond end
    Fragments even, odd;
    Read(even);
#pragma unroll 1
    while (stages_.left >= 2) {
      MultiplyAndRead(even, odd, acc);
      MultiplyAndRead(odd, even, acc);
    }
    if (stages_.left > 0) {
      MultiplyAndRead(even, odd, acc);
      MultiplyLast(odd, last, acc);
    } else {
      MultiplyLast(even, last, acc);
    }
  }

 private:
  // Fragments of a stage.
  struct Fragments {
    uint32_t w[kStageSteps][4];
    uint32_t x[kStageSteps / 2][4];
  };

  __device__ __forceinline__ uint32_t Full() const {
    return barriers_ + 16 * stages_.slot;
  }
  __device__ __forceinline__ uint32_t RowAt(int chunk) const {
    return row_ + 2 * kChunk * chunk;
  }
  // ldmatrix: outputs 0-7 and 8-15 of 16 inputs.
  __device__ __forceinline__ void LoadWeights(int i, uint32_t (&w)[4]) const {
    const int row = lane_ % 16;
    LoadMatrices(w, ring_ + stages_.slot * kStageBytes + row * 128 +
                        i / 4 * kChunkBytes +
                        ((2 * (i % 4) + lane_ / 16) ^ row % 8) * 16);
  }
  // A copy into the slot overtakes a load that nothing waits for (observed).
  // `zero` is 0, computed from the last load.
  __device__ __forceinline__ void GiveBack(int slot, uint32_t zero) const {
    __syncwarp();
    if (lane_ == 0) BarrierArrive(barriers_ + 16 * slot + 8 + zero);
  }

  __device__ __forceinline__ void TakeNext() {
    __syncwarp();  // ldmatrix needs all lanes
#pragma unroll
    for (int round = 0; round < kKept; ++round) {
      if (round != kept_) continue;
#pragma unroll
      for (int i = 0; i < kStageSteps; ++i) LoadWeights(i, weights_[round][i]);
    }
    ++kept_;
    BulkCopyFence();
    GiveBack(stages_.slot, 0);
    stages_.Advance(slots_);
  }

  __device__ __forceinline__ void MultiplyKept(int begin, int end,
                                               float (&acc)[4]) const {
    if (kept_ == 0) return;
    constexpr int kChunks = kKept * kStageChunks;
    uint32_t x[2][2][4];
    const auto load = [&](int c) {
      LoadMatrices(x[c % 2][0], RowAt(begin + c));
      LoadMatrices(x[c % 2][1], RowAt(begin + c) + 64);
    };
    load(0);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c >= kept_ * kStageChunks || begin + c >= end) break;
      // (The last load may be beyond the row's end.)
      if (c + 1 < kChunks) load(c + 1);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Half<T>::Mma(acc, weights_[c / 2][4 * (c % 2) + j],
                     x[c % 2][j / 2][2 * (j % 2)],
                     x[c % 2][j / 2][2 * (j % 2) + 1]);
      }
    }
  }

  __device__ __forceinline__ void ReadStep(Fragments& f, int i) const {
    LoadWeights(i, f.w[i]);
    if (i % 2 == 0) LoadMatrices(f.x[i / 2], row_at_ + 32 * i);
  }
  __device__ __forceinline__ static void MultiplyStep(const Fragments& f, int i,
                                                      float (&acc)[4]) {
    Half<T>::Mma(acc, f.w[i], f.x[i / 2][2 * (i % 2)],
                 f.x[i / 2][2 * (i % 2) + 1]);
  }
  __device__ __forceinline__ void EndRead() {
    held_ = stages_.slot;
    row_at_ += 2 * kChunk * kStageChunks;
    stages_.Advance(slots_);
  }
  __device__ __forceinline__ void Read(Fragments& f) {
    BarrierWait(Full(), stages_.parity);
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) ReadStep(f, i);
    EndRead();
  }
  // The next stage's fragments are read in eight steps, interleaved with the
  // products of this one. All eight warps reading at once and then multiplying
  // at once would take the sum of both times.
  __device__ __forceinline__ void MultiplyAndRead(const Fragments& f,
                                                  Fragments& next,
                                                  float (&acc)[4]) {
    BarrierWait(Full(), stages_.parity);
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      ReadStep(next, i);
      MultiplyStep(f, i, acc);
    }
    GiveBack(held_, f.w[kStageSteps - 1][3] & zero_);
    EndRead();
  }
  // The last stage, of which `behind` chunks are beyond the end.
  __device__ __forceinline__ void MultiplyLast(const Fragments& f, int behind,
                                               float (&acc)[4]) const {
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      if (behind <= (i < kStageSteps / 2 ? 1 : 0)) MultiplyStep(f, i, acc);
    }
    GiveBack(held_, f.w[kStageSteps - 1][3] & zero_);
  }

  const uint32_t ring_;
  const uint32_t barriers_;
  const int slots_;
  const uint32_t row_;
  const uint32_t zero_;
  const int lane_;
  Stages stages_;
  uint32_t weights_[kKept][kStageSteps][4];
  int kept_;         // rounds
  uint32_t row_at_;  // of the next stage's inputs
  int held_;         // the stage read last
};

}  // namespace chain
}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_MULTIPLY_CUH_
