#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_CUDA_H_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_CUDA_H_

// SampleRow (sampling.h) on the GPU: for the same logits the same tokens and
// log-probabilities, bit for bit. Weights and sums are those of
// sampling_weight.h; ranks are those of 64-bit keys. Histograms with integer
// sums, of logits and then of keys, find the end of a truncation until few
// tokens are left, which are ranked one by one.
//
// Requests are in device memory, so that a captured graph serves any. Two
// tables have a row for each state slot: counts of seen tokens, and the
// request's bias. The caller maintains them (engine/cuda/cuda_sampler.h).
//
// Every pointer but CudaSampleRow::copy is device memory. Nothing here
// allocates or synchronises.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace recurve {

inline constexpr int32_t kNonFiniteLogits = -1;  // in place of a token
inline constexpr int kSampleMaxTop = 32;         // log-probabilities of a row
inline constexpr int kSampleMaxBias = 1152;      // entries of a row

// Entry of the table of counts: the token's count in the output, and this bit
// if it is in the prompt.
inline constexpr uint32_t kSampleInPrompt = 0x80000000u;

struct CudaBias {
  int32_t id;
  float bias;
};

struct CudaSampleResult {
  int32_t token;    // kNonFiniteLogits for a row with a NaN or +Inf, or nothing
                    // but -Inf; the rest is then undefined
  float logit;      // of it, after penalties and bias
  float max;        // the largest
  int32_t num_top;  // entries in `top`
  uint64_t sum;     // of weights at temperature 1, for SampleLogSum; with
                    // num_logprobs >= 0
};

// One sample. Fields without a comment are SamplingParams'.
struct CudaSampleRow {
  uint64_t uniform;            // SampleUniform
  double inverse_temperature;  // 0: the best token
  CudaSampleResult* copy;      // null, or where the result goes, too: memory
                               // that the device can write, as page-locked
                               // memory of the host
  int32_t row;                 // of the logits; below 0: nothing to draw
  int32_t slot;                // row of the tables
  int32_t penalties;           // whether there are any; the token drawn is then
                               // counted in the table
  int32_t num_bias;            // entries in the table; at most kSampleMaxBias,
                               // with ids below vocab
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  float top_p;
  float min_p;
  int32_t top_k;
  int32_t num_logprobs;  // at most kSampleMaxTop
  int32_t unused;
};

struct CudaTopToken {
  int32_t id;
  float logit;
};

struct CudaSampleParams {
  const CudaSampleRow* samples;  // [num_samples]
  int64_t num_samples;
  const float* logits;  // [rows, vocab]
  int64_t stride;       // elements between rows, >= vocab
  int64_t vocab;
  uint32_t* counts;       // [slots, vocab]; read and written with penalties
  int64_t counts_stride;  // elements between rows
  const CudaBias* bias;   // [slots, kSampleMaxBias]
  float* adjusted;  // [num_samples, stride]: scratch for penalties and bias
  CudaSampleResult* results;  // [num_samples]
  CudaTopToken* top;          // [num_samples, kSampleMaxTop], in rank order
};
// cudaErrorInvalidValue for negative num_samples, or vocab outside 1 to
// kMaxSampleVocab.
cudaError_t LaunchSample(const CudaSampleParams& params, cudaStream_t stream);
// The same with `blocks` thread blocks a sample, which LaunchSample chooses
// (sampling_plan.h): 1, or 2, 4 or 8 on devices of compute capability 9.0, else
// cudaErrorNotSupported.
cudaError_t LaunchSampleOf(int blocks, const CudaSampleParams& params,
                           cudaStream_t stream);

// Adds tokens to a row of the table of counts.
struct CudaCountParams {
  const uint32_t* tokens;  // [count] ids below the length of the row, with
                           // kSampleInPrompt for those of the prompt
  int64_t count;
  uint32_t* counts;  // the row
};
// cudaErrorInvalidValue for a negative count.
cudaError_t LaunchCountTokens(const CudaCountParams& params,
                              cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_CUDA_H_
