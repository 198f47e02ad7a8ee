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
#include "engine/program/step.h"
#include "kernels/sampling/sampling_cuda.h"

namespace recurve {

// Draws the tokens of a CudaExecutor on the device. The parameters of requests
// are copied with the step's other inputs, so that the launch can be in a
// captured graph.
//
// Penalties use a table with a row for each state slot, in which the kernel
// counts the tokens it draws. A row is rebuilt from the request's tokens if
// those are not the ones counted, for example after another sequence used the
// slot. So the cost of a step does not depend on the length of a sequence;
// copying and counting the tokens themselves would repeat that in every step.
// The biases of a request are a row of another table, followed by -Inf for its
// masked tokens; a sample reads these only while they count.
//
// Not thread-safe.
class CudaSampler {
 public:
  // Device memory for `slots` slots (slot 0 included), `samples` samples in a
  // step, and `logits` logits in a row.
  static int64_t DeviceBytes(int64_t slots, int64_t samples, int64_t logits);
  // Size of a step of `samples` samples in a CudaStepBuffer.
  static int64_t StepBytes(int64_t samples);
  absl::Status Allocate(int64_t slots, int64_t samples, int64_t logits);

  // Begins the samples of `batch`, which lives until they are read. `rows`: the
  // row of each in the logits of its launch. A launch has `padded` samples;
  // those beyond the batch's are idle. Updates the tables, so it must not be
  // captured. The results of the step before the last one must have been read.
  absl::Status Begin(const StepBatch& batch, absl::Span<const int32_t> rows,
                     int64_t padded, CudaStepBuffer* step, cudaStream_t stream);
  // Draws samples [first, first + count), and copies them to the host.
  cudaError_t Launch(const float* logits, int64_t stride, int64_t vocab,
                     int64_t first, int64_t count, cudaStream_t stream) const;
  // Copies the top tokens to the host, if any sample wants them. Must not be
  // captured.
  cudaError_t CopyTop(cudaStream_t stream) const;
  // The results of the earliest step not yet read; waits for it.
  void Read(StepOutput* output);

  // Where the next step finds the token of the last one's sample i: at i ·
  // kTokenStride.
  static constexpr int64_t kTokenStride =
      sizeof(CudaSampleResult) / sizeof(int32_t);
  const int32_t* tokens() const {
    static_assert(offsetof(CudaSampleResult, token) == 0);
    return results_.as<const int32_t>();
  }

 private:
  // Contents of the tables for a slot.
  struct Slot {
    bool used = false;
    uint64_t sequence = 0;
    size_t prompt = 0;  // tokens counted
    size_t output = 0;
    bool counts = false;  // the row of counts is valid
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

  int64_t width_ = 0;  // padded size of a row of logits
  int64_t max_samples_ = 0;
  CudaMemory counts_;    // [slots, width_]
  CudaMemory biases_;    // [slots, kSampleMaxBias]
  CudaMemory uploads_;   // tokens in transit to counts_
  CudaMemory adjusted_;  // [max_samples_, width_]
  CudaMemory results_;
  CudaMemory top_;
  std::vector<Slot> slots_;
  const CudaSampleRow* samples_ = nullptr;  // on the device, for the last step
  Step steps_[2];
  int64_t num_begun_ = 0;
  int64_t num_read_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_SAMPLER_H_
