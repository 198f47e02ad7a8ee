#ifndef RECURVE_ENGINE_CUDA_CUDA_SAMPLER_H_
#define RECURVE_ENGINE_CUDA_CUDA_SAMPLER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "engine/models/step.h"
#include "kernels/sampling/sampling_cuda.h"

namespace recurve {

// Draws the tokens of a CudaBackend where the logits are. What requests ask is
// copied with the rest of a step, so that the launch may be in a captured
// graph.
//
// What penalties look at is a table: a row for each state slot, in which the
// kernel counts the tokens it draws. It is brought up to date from the
// request's tokens when they are not those that were counted, as after another
// sequence had the slot. So a step costs the same however long a sequence is,
// and needs nothing from the host that the GPU knows already; the tokens
// themselves would be copied and counted again in every step. The biases of a
// request are a row of another table.
//
// Not thread-safe.
class CudaSampler {
 public:
  // Memory on the device for so many slots (slot 0 included), samples in a
  // step, and logits in a row.
  static int64_t DeviceBytes(int64_t slots, int64_t samples, int64_t logits);
  // Room that a step of so many samples takes in a CudaStepBuffer.
  static int64_t StepBytes(int64_t samples);
  absl::Status Allocate(int64_t slots, int64_t samples, int64_t logits);

  // The samples of `batch`, which lives until they are read. `rows`: the row of
  // each in the logits of its launch. What is launched has `padded` samples;
  // those beyond the batch's are idle. Brings the tables up to date, so not
  // while capturing. The results of the last step but one must have been read.
  absl::Status Begin(const StepBatch& batch, absl::Span<const int32_t> rows,
                     int64_t padded, CudaStepBuffer* step, cudaStream_t stream);
  // Draws samples [first, first + count), to the host, too.
  cudaError_t Launch(const float* logits, int64_t stride, int64_t vocab,
                     int64_t first, int64_t count, cudaStream_t stream) const;
  // Brings the best tokens to the host, if any sample wants them. Not while
  // capturing.
  cudaError_t CopyTop(cudaStream_t stream) const;
  // The results of the earliest step that was not read, once that is done.
  void Read(StepOutput* output);

  // Where the next step finds the token that sample i of the last one draws: at
  // i · kTokenStride.
  static constexpr int64_t kTokenStride =
      sizeof(CudaSampleResult) / sizeof(int32_t);
  const int32_t* tokens() const {
    static_assert(offsetof(CudaSampleResult, token) == 0);
    return results_.as<const int32_t>();
  }

 private:
  // What is in the tables for a slot.
  struct Slot {
    bool used = false;
    uint64_t sequence = 0;
    size_t prompt = 0;  // tokens counted
    size_t output = 0;
    bool counts = false;  // the row of counts has these
    bool bias = false;    // the row of biases is the sequence's
  };

  // A step that was begun and not read.
  struct Step {
    const StepBatch* batch = nullptr;
    bool any_top = false;
    CudaMemory results, top;  // on the host
  };
  const Step& begun() const { return steps_[num_begun_ % 2]; }

  absl::Status UpdateTables(const SampleRequest& request, int32_t slot,
                            cudaStream_t stream);
  absl::Status Count(absl::Span<const int32_t> tokens, uint32_t flag,
                     int32_t slot, cudaStream_t stream);

  int64_t width_ = 0;  // of a row of logits, padded
  int64_t max_samples_ = 0;
  CudaMemory counts_;    // [slots, width_]
  CudaMemory biases_;    // [slots, kSampleMaxBias]
  CudaMemory uploads_;   // tokens on their way into counts_
  CudaMemory adjusted_;  // [max_samples_, width_]
  CudaMemory results_;
  CudaMemory top_;
  std::vector<Slot> slots_;
  const CudaSampleRow* samples_ = nullptr;  // on the device, of the last step
  Step steps_[2];
  int64_t num_begun_ = 0;
  int64_t num_read_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_SAMPLER_H_
