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

// Linear attention of a CudaBackend: what is launched for a layer in a step.
//
//  - Tokens of TokenKind::kStep: the scan, one update a token in float32.
//  - Prompts: the kernel that goes by chunks, where there is one for the device
//    and the layer, and chunks are used; else the scan.
//  - What a layer that is not causal looks at as a whole: under the same
//    conditions the non-causal kernel, else the scan.
//
// Both kernels take factors that a pass of its own has activated, encoded and
// rounded (LaunchLinearFactors), unless their encoding is too wide for them:
// then they encode. Which of all this a layer takes, its sizes decide. So a
// token is always computed by the same kernel, which gives it the same
// bits in any batch, and however its prompt is cut at multiples of
// chunk_multiple(), where it may be cut.
class CudaLinear {
 public:
  explicit CudaLinear(const TpaDevice& device) : device_(device) {}

  // chunk_multiple() on such a device of a model that has states or not, and
  // matrices all in bfloat16 or not: more than 1 if prompts are computed by
  // chunks. These round what they multiply to bfloat16, which would show in
  // models of finer weights.
  static int64_t ChunkMultiple(bool hopper, bool states, bool bfloat16);
  // Prompts are computed by chunks. If some layer looks at them as a whole
  // (`whole`) this allocates WholeBytes(). REQUIRES: ChunkMultiple of the model
  // is more than 1.
  absl::Status UseChunks(bool whole);
  static int64_t WholeBytes();
  int64_t chunk_multiple() const { return chunk_multiple_; }

  // --- A step ---

  // Room that a step takes in a CudaStepBuffer, of so many tokens at most.
  static int64_t StepBytes(int64_t tokens, int64_t sequences);

  // Every row's tokens, for the scan. Pointers are to the device, here and
  // below.
  struct Rows {
    int64_t count;
    const int32_t* query_start;  // [count + 1]
    const int32_t* slots;        // [count]
    const int32_t* whole;        // [count] LinearAttentionParams, or null
  };
  void BeginDecode(const Rows& rows);
  // Adds what the step's launches need, and rows.whole, to `step`.
  void BeginMixed(const Rows& rows, const StepBatch& batch,
                  const std::vector<StepRun>& runs, CudaStepBuffer* step);

  struct Layer {
    const LinearConfig* config;
    const uint64_t* phase_steps;  // null where angles are not exact
    const float* cos;             // of the step's rows
    const float* sin;
    const float* decay;  // [num_heads]
    float* states;       // LinearAttentionParams
    int64_t slot_stride;
    Activations q, k, v;
    Activations out;
    Activations scratch;  // Backend::LinearAttentionArgs
    // Of an encoded q or k.
    int64_t key_dim() const {
      return LrpeOutputDim(config->position.type, config->head_dim);
    }
  };
  absl::Status Attend(const Layer& layer, cudaStream_t stream);

 private:
  // One launch: runs that follow each other in the step.
  struct Launch {
    Rows rows;
    const int64_t* positions;  // [rows.count] of the first tokens
  };
  // Of a layer that is not causal, runs [first, first + count) of a group: all
  // begin a prompt, or none.
  struct Stretch {
    bool whole;
    int64_t first, count;
    int64_t begin, end;  // rows of the step
  };
  struct Group {
    bool prompt;
    Launch launch;
    std::vector<Stretch> stretches;  // of prompts
  };
  // q̃, k̃ and ṽ of bfloat16, as rows of the step.
  struct Factors {
    const uint16_t* q;
    const uint16_t* k;
    const uint16_t* v;
    int64_t stride;
  };

  // Whether prompts pass the layer by chunks.
  bool PrefillsByChunks(const Layer& layer) const;
  // Whether the non-causal kernel is for the layer, if that is so.
  static bool FusesWhole(const Layer& layer);
  // Makes factors of rows [begin, end) of the step, encoded if `encode`.
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

  // Of the step in progress.
  bool decode_ = false;
  Rows rows_ = {};
  std::vector<Group> groups_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_LINEAR_H_
