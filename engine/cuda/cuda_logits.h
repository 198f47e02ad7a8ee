#ifndef RECURVE_ENGINE_CUDA_CUDA_LOGITS_H_
#define RECURVE_ENGINE_CUDA_CUDA_LOGITS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/program/step.h"

namespace recurve {

// Memory of a step's logits: on the device a part of the rows at a time, on the
// host all rows, if they were requested.
//
// Thread safety: none; the step thread.
class CudaLogits {
 public:
  // Device memory used by Allocate.
  static int64_t DeviceBytes(int64_t min_rows, int64_t max_rows, int64_t hidden,
                             int64_t vocab);
  // Allocates device memory for at least `min_rows` rows, and up to `max_rows`
  // if they are small: `hidden` inputs and `vocab` tokens each.
  // ResourceExhausted if memory does not suffice.
  absl::Status Allocate(int64_t min_rows, int64_t max_rows, int64_t hidden,
                        int64_t vocab);

  int64_t capacity() const { return capacity_; }  // rows on the device
  // Elements between rows of `columns` columns: rows begin at multiples of 16
  // bytes.
  static int64_t Stride(int64_t columns) { return (columns + 3) / 4 * 4; }
  // Normalised rows whose logits are wanted, [capacity, Stride(hidden)]
  // float32.
  float* inputs() const { return inputs_.as<float>(); }
  float* data() const { return logits_.as<float>(); }  // [capacity, Stride]

  // Makes room for `rows` rows on the host. ResourceExhausted if there is no
  // memory; the previous buffer then stays valid. REQUIRES: no work in flight
  // writes to it, and no graph is being captured.
  absl::Status ReserveHost(int64_t rows, int64_t vocab);
  // Puts a copy of `count` rows on `stream`, from device_row on to host_row on.
  absl::Status CopyToHost(int64_t device_row, int64_t host_row, int64_t count,
                          int64_t vocab, cudaStream_t stream) const;
  // Puts a copy of a row on `stream`: kept row `index` < kMaxKeptRows of step
  // `step`, which is there until step + 2 copies.
  absl::Status Keep(int64_t device_row, int64_t step, int64_t index,
                    int64_t vocab, cudaStream_t stream) const;
  absl::Span<const float> kept(int64_t step, int64_t index,
                               int64_t vocab) const {
    return {KeptRow(step, index, vocab), static_cast<size_t>(vocab)};
  }
  // [rows, vocab] on the host.
  absl::Span<const float> host(int64_t rows, int64_t vocab) const {
    return absl::MakeConstSpan(host_.as<const float>(),
                               static_cast<size_t>(rows * vocab));
  }

 private:
  float* KeptRow(int64_t step, int64_t index, int64_t vocab) const {
    return kept_.as<float>() +
           (step % 2 * kMaxKeptRows + index) * Stride(vocab);
  }

  int64_t capacity_ = 0;
  CudaMemory inputs_;
  CudaMemory logits_;
  CudaMemory host_;  // grows
  CudaMemory kept_;  // [2, kMaxKeptRows, Stride(vocab)], on the host
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_LOGITS_H_
