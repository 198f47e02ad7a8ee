#ifndef RECURVE_ENGINE_CUDA_CUDA_LINEAR_H_
#define RECURVE_ENGINE_CUDA_CUDA_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "engine/models/backend.h"
#include "engine/models/step_runs.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

// Linear attention of a CudaBackend: the launches of a layer in a step.
//
// - Tokens of TokenKind::kStep: the scan, one update a token in float32.
// - Prompts: the chunk kernel, if there is one for the device and the layer,
//   and chunks are used; else the scan.
// - Whole prompts of a non-causal layer: under the same conditions the
//   non-causal kernel, else the scan.
//
// Both kernels take factors that a separate pass has activated, encoded and
// rounded (LaunchLinearFactors), unless the encoded factors are too wide: then
// the kernels encode. A layer's sizes alone decide which path it takes. So a
// token is always computed by the same kernel, which gives it the same bits in
// any batch and for any split of its prompt at multiples of chunk_multiple(),
// where it may be split.
class CudaLinear {
 public:
  explicit CudaLinear(const TpaDevice& device) : device_(device) {}

  // chunk_multiple() on such a device for a model with or without states, and
  // with or without all matrices in bfloat16: more than 1 if prompts are
  // computed in chunks. The chunk kernels round their operands to bfloat16,
  // which would be visible in models with finer weights.
  static int64_t ChunkMultiple(bool hopper, bool states, bool bfloat16);
  // Computes prompts in chunks from now on. If some layer processes them as a
  // whole (`whole`) this allocates WholeBytes(). REQUIRES: ChunkMultiple of the
  // model is more than 1.
  absl::Status UseChunks(bool whole);
  static int64_t WholeBytes();
  int64_t chunk_multiple() const { return chunk_multiple_; }

  // --- A step ---

  // Upper bound on the size of a step of these sizes in a CudaStepBuffer.
  static int64_t StepBytes(int64_t tokens, int64_t sequences);

  // Every row's tokens, for the scan. Device pointers, here and below.
  struct Rows {
    int64_t count;
    const int32_t* query_start;  // [count + 1]
    const int32_t* slots;        // [count]
    const int32_t* whole;        // [count] LinearAttentionParams, or null
  };
  void BeginDecode(const Rows& rows);
  // Adds the inputs of the step's launches, and rows.whole, to `step`.
  void BeginMixed(const Rows& rows, const StepBatch& batch,
                  const std::vector<StepRun>& runs, CudaStepBuffer* step);

  struct Layer {
    const LinearConfig* config;
    const uint64_t* phase_steps;  // null unless angles are exact
    const float* cos;             // for the step's rows
    const float* sin;
    const float* decay;  // [num_heads]
    float* states;       // LinearAttentionParams
    int64_t slot_stride;
    Activations q, k, v;
    Activations out;
    Activations scratch;  // Backend::LinearAttentionArgs
    // Columns of an encoded q or k.
    int64_t key_dim() const {
      return LrpeOutputDim(config->position.type, config->head_dim);
    }
  };
  absl::Status Attend(const Layer& layer, cudaStream_t stream);

 private:
  // One launch: consecutive runs of the step.
  struct Launch {
    Rows rows;
    const int64_t* positions;  // [rows.count] positions of the first tokens
  };
  // For a non-causal layer, runs [first, first + count) of a group: either all
  // begin a prompt, or none does.
  struct Stretch {
    bool whole;
    int64_t first, count;
    int64_t begin, end;  // rows of the step
  };
  struct Group {
    bool prompt;
    Launch launch;
    std::vector<Stretch> stretches;  // for prompts
  };
  // q̃, k̃ and ṽ in bfloat16, as rows of the step.
  struct Factors {
    const uint16_t* q;
    const uint16_t* k;
    const uint16_t* v;
    int64_t stride;
  };

  // Whether the layer computes prompts in chunks.
  bool PrefillsByChunks(const Layer& layer) const;
  // Whether the non-causal kernel supports the layer, if it does.
  static bool FusesWhole(const Layer& layer);
  // Computes the factors of rows [begin, end) of the step, encoded if `encode`.
  static absl::Status MakeFactors(const Layer& layer, bool encode,
                                  int64_t begin, int64_t end, Factors* factors,
                                  cudaStream_t stream);
  static absl::Status Scan(const Layer& layer, const Rows& rows, bool early,
                           cudaStream_t stream);
  // Rows [begin, end) of the step.
  static absl::Status Prefill(const Layer& layer, const Launch& launch,
                              int64_t begin, int64_t end, cudaStream_t stream);
  absl::Status PrefillStretches(const Layer& layer, const Group& group,
                                cudaStream_t stream) const;
  absl::Status PrefillWhole(const Layer& layer, const Launch& launch,
                            const Stretch& stretch, cudaStream_t stream) const;

  const TpaDevice device_;
  int64_t chunk_multiple_ = 1;
  CudaMemory whole_workspace_;  // LinearNoncausalParams

  // State of the step in progress.
  bool decode_ = false;
  Rows rows_ = {};
  std::vector<Group> groups_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_LINEAR_H_
