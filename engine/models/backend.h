#ifndef RECURVE_ENGINE_MODELS_BACKEND_H_
#define RECURVE_ENGINE_MODELS_BACKEND_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor_view.h"
#include "engine/models/config.h"
#include "engine/models/step.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Handles to objects that a backend owns.
struct MatrixId {
  int32_t value = -1;
};
struct VectorId {
  int32_t value = -1;
};
struct TableId {
  int32_t value = -1;
};
struct PositionId {
  int32_t value = -1;
};
struct TpaCacheId {
  int32_t value = -1;
};
struct StateId {
  int32_t value = -1;
};

// A block of activation rows in the backend's memory: one row for each token of
// the step. Model code passes these on and slices them by columns; only the
// backend accesses the contents.
struct Activations {
  char* data = nullptr;
  int64_t cols = 0;
  int64_t stride = 0;         // elements between rows
  int64_t element_bytes = 4;  // of the backend's activation type
  // Only Project reads what Norm, Glu or Tpa writes here: a backend may store
  // it, from the first column on, in the type that its products take.
  bool for_products = false;

  Activations Columns(int64_t first, int64_t count) const {
    return {data + first * element_bytes, count, stride, element_bytes,
            for_products};
  }
};

// Executes a model on one device. bench/cuda/timed_backend.h decorates one and
// forwards every method, including those with a default here. Methods are whole
// operations on the ragged batch given to BeginStep, so that model code is
// written once for every device.
//
// Order of calls: Load… and Allocate… while a model is built; AllocateCache
// once; then, for each step, BeginStep, operations, EndStep. If runs_ahead(),
// the next step may begin before the last one ends.
//
// A row's result depends on that row, its sequence and its position only.
//
// Thread safety: one thread at a time.
class Backend : public CacheStorage {
 public:
  virtual absl::string_view name() const = 0;
  virtual absl::string_view weight_dtype() const = 0;
  virtual absl::string_view state_dtype() const = 0;
  virtual absl::string_view kv_dtype() const = 0;

  // --- Building a model ---

  // Concatenates the rows of `parts`, each [n_i, inputs].
  virtual absl::StatusOr<MatrixId> LoadMatrix(
      absl::Span<const MatrixPart> parts) = 0;
  virtual absl::StatusOr<VectorId> LoadVector(
      absl::Span<const float> values) = 0;
  virtual absl::StatusOr<TableId> LoadEmbedding(const TensorView& table) = 0;
  virtual absl::StatusOr<PositionId> LoadPosition(
      const PositionConfig& config) = 0;
  // Bytes of weights loaded so far.
  virtual uint64_t weight_bytes() const = 0;

  // Declares the memory of one layer. Bytes are those of one page or slot.
  virtual TpaCacheId AddTpaCache(const TpaShape& shape) = 0;
  // A layer that is not causal processes prompts as a whole.
  virtual StateId AddState(int64_t num_heads, int64_t key_dim,
                           int64_t value_dim, bool causal) = 0;
  virtual int64_t page_bytes() const = 0;
  virtual int64_t slot_bytes() const = 0;
  // Allocates pages 0 ... num_pages and slots 0 ... num_slots, all zero; number
  // 0 of each is the sink for padding rows.
  virtual absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) = 0;
  // Host memory for Save and Restore: blocks 1 ... num_blocks of `block_bytes`
  // each. After AllocateCache; without this call there are no blocks.
  virtual absl::Status AllocateHost(int32_t /*num_blocks*/,
                                    int64_t /*block_bytes*/) {
    return absl::UnimplementedError(
        absl::StrCat(name(), " cannot save sequences in host memory"));
  }

  // ModelInfo::chunk_multiple, once a model is built.
  virtual int64_t chunk_multiple() const { return 1; }

  // The outputs of an operation begin at multiples of this many columns, and
  // Project may write zeros up to the next multiple.
  virtual int64_t column_multiple() const { return 1; }
  int64_t PadColumns(int64_t cols) const {
    const int64_t multiple = column_multiple();
    return (cols + multiple - 1) / multiple * multiple;
  }

  // Allocates rows for the largest step.
  virtual absl::StatusOr<Activations> AllocateActivations(int64_t cols) = 0;

  // --- One step ---

  virtual absl::Status BeginStep(const StepBatch& batch) = 0;

  // out = scale · table[token]
  virtual void Embed(TableId table, float scale, Activations out) = 0;
  // Every row of out = values.
  virtual void Fill(VectorId values, Activations out) = 0;

  struct NormArgs {
    NormKind kind = NormKind::kRms;
    int64_t groups = 1;
    double eps = 0;
    VectorId weight;  // -1: none
    VectorId bias;    // -1: none
  };
  virtual void Norm(Activations in, const NormArgs& norm, Activations out) = 0;
  // out = in · matrixᵀ, or out += that. The columns after `out`, up to
  // PadColumns, may be written to.
  virtual void Project(Activations in, MatrixId matrix, Activations out,
                       bool add) = 0;
  // out = act(in[:, :n]) ⊙ in[:, n:]
  virtual void Glu(Activations in, Activation activation, Activations out) = 0;

  // residual += (act(g) ⊙ u) · w3ᵀ, where (g, u) = Norm(residual) · w1_w2ᵀ. The
  // other activations are undefined afterwards.
  struct ChannelMixerArgs {
    Activations residual;
    NormArgs norm;
    MatrixId w1_w2;
    Activation activation;
    MatrixId w3;
    Activations normed;  // same shape as residual
    Activations gates;   // [T, 2·n]
    Activations gated;   // [T, n]
    Activations hidden;  // its first columns: the inputs of w3
  };
  virtual void ChannelMixer(const ChannelMixerArgs& args) {
    Norm(args.residual, args.norm, args.normed);
    Project(args.normed, args.w1_w2, args.gates, /*add=*/false);
    Glu(args.gates, args.activation, args.gated);
    Project(args.hidden, args.w3, args.residual, /*add=*/true);
  }

  struct TpaArgs {
    TpaCacheId cache;
    PositionId position;
    Activation factor_activation;  // for a_k and a_v
    Activations a_q, b_q, a_k, b_k, a_v, b_v;
    Activations out;  // [T, H·E]
    MatrixId next;    // the matrix that multiplies `out`, which a backend may
                      // prefetch; -1: none
  };
  // Appends the step's tokens to the factor cache and attends.
  virtual void Tpa(const TpaArgs& args) = 0;

  // out[h] = (1/rank) Σ_r a[r,h] · b[r]
  struct ExpandArgs {
    Activations a;  // [T, rank·heads]
    Activations b;  // [T, rank·dim]
    int64_t rank;
    int64_t num_heads;
    Activations out;  // [T, heads·dim]
  };
  virtual void ExpandFactors(const ExpandArgs& args) = 0;

  struct LinearAttentionArgs {
    StateId state;
    PositionId position;
    VectorId decay;  // λ per head
    const LinearConfig* config;
    Activations q, k, v;
    Activations out;  // [T, H·E]
    // [T, (H·(2·LrpeOutputDim + E) + 1) / 2]: space for 16-bit factors; none
    // for D = 1.
    Activations scratch;
  };
  virtual void LinearAttention(const LinearAttentionArgs& args) = 0;

  struct GatedNormArgs {
    Activations in;
    Activations gate;
    Activation activation;
    bool gate_after_norm;
    NormArgs norm;  // kRms
    Activations out;
  };
  virtual void GatedNorm(const GatedNormArgs& args) = 0;

  // Normalises the rows whose logits are wanted, multiplies them by the head,
  // and draws the samples.
  virtual void Head(Activations in, const NormArgs& norm, MatrixId head) = 0;

  // Waits for the earliest step that was begun and not ended, and returns its
  // results. An error is a failure of the device.
  virtual absl::Status EndStep(StepOutput* output) = 0;
  // To be run once each, in order, after the cache is allocated and before
  // there is a sequence, so that no later step is slower because it is the
  // first of its kind. They write only page 0 and slot 0, the sinks.
  virtual std::vector<StepBatch> WarmUpSteps() const { return {}; }
  // Whether a step may begin before the one before it ends.
  virtual bool runs_ahead() const { return false; }
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_BACKEND_H_
