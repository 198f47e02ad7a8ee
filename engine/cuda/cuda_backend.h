#ifndef RECURVE_ENGINE_CUDA_CUDA_BACKEND_H_
#define RECURVE_ENGINE_CUDA_CUDA_BACKEND_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "engine/cuda/cuda_cache_memory.h"
#include "engine/cuda/cuda_linear.h"
#include "engine/cuda/cuda_logits.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_positions.h"
#include "engine/cuda/cuda_products.h"
#include "engine/cuda/cuda_sampler.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "engine/cuda/cuda_tpa.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/models/backend.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// The model on one GPU and one stream, except for copies from and to the host.
// Weights are 16-bit or float32, recurrent states are float32, TPA factors
// 16-bit; activations are float32, except those read only by products, which
// have the weights' type. All memory is allocated while a model is built; a
// step's inputs are copied to fixed addresses in one transfer, which overlaps
// the previous step.
//
// Exactness: every kernel computes a row from that row alone. Steps and prompts
// (TokenKind) mostly use different kernels for attention and for products with
// 16-bit weights; each kernel has one summation order for every number of rows.
//
// Steps in which every sequence has one token of kStep are captured in a CUDA
// graph for each power of two of sequences and for each split of their
// attention (TpaContexts), and replayed; the graph's extra rows are padding in
// page and slot 0.
//
// All work of a step, and on pages and slots, is put on the stream in order;
// EndStep waits for the event after its step. So two steps may be in flight.
//
// Two backends of a process must not run steps on one device at the same time:
// some kernels have blocks that wait for each other and must all be resident
// (LaunchTpaDecode, LaunchProductChain).
//
// Errors of the device are kept and returned by EndStep. Missing host memory
// for logits is not one of them (StepOutput::logits_status).
class CudaBackend : public Backend {
 public:
  struct Options {
    // kFloat32, kBFloat16 or kFloat16. Absent: the 16-bit type in which all
    // parts of a matrix are stored, else float32.
    std::optional<DType> weight_dtype;
    DType kv_dtype = DType::kBFloat16;  // or kFloat16
    int64_t hidden_size = 0;            // inputs of the head
    int64_t vocab_size = 0;             // outputs of the head
    int64_t max_tokens = 0;             // rows in the largest step, <= 65535
    int64_t max_sequences = 0;          // in a step
    int64_t max_pages = 0;              // of a sequence
    bool graphs = true;
  };
  // `threads`: to load weights.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(
      const Options& options, std::unique_ptr<ThreadPool> threads);
  // Before a backend exists: the device memory that attention of layers of
  // these shapes needs in addition to the cache, and that the steps' inputs
  // need. InvalidArgument, with the limit.
  static absl::StatusOr<int64_t> AttentionBytes(
      const Options& options, absl::Span<const TpaShape> shapes);
  // Likewise, an upper bound for layers of linear attention that process
  // prompts as a whole, without their states.
  static int64_t LinearBytes();
  // Likewise, for logits and sampling; and for activations of `cols` columns.
  static int64_t SamplingBytes(const Options& options);
  static int64_t ActivationBytes(const Options& options, int64_t cols);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  // For benchmarks: the stream on which all work is put.
  cudaStream_t stream() const { return stream_; }
  // For benchmarks: gives every page and slot random values, because zeros are
  // multiplied faster. Waits.
  absl::Status FillCacheAtRandom();

  absl::string_view name() const override { return "cuda"; }
  absl::string_view weight_dtype() const override {
    return products_->weight_dtype();
  }
  absl::string_view state_dtype() const override { return "float32"; }
  absl::string_view kv_dtype() const override {
    return Name(options_.kv_dtype);
  }

  absl::StatusOr<MatrixId> LoadMatrix(
      absl::Span<const MatrixPart> parts) override;
  absl::StatusOr<VectorId> LoadVector(absl::Span<const float> values) override;
  absl::StatusOr<TableId> LoadEmbedding(const TensorView& table) override;
  absl::StatusOr<PositionId> LoadPosition(
      const PositionConfig& config) override;
  uint64_t weight_bytes() const override {
    return other_weight_bytes_ + products_->bytes();
  }

  TpaCacheId AddTpaCache(const TpaShape& shape) override;
  StateId AddState(int64_t num_heads, int64_t key_dim, int64_t value_dim,
                   bool causal) override;
  int64_t page_bytes() const override { return 2 * page_elements_; }
  int64_t slot_bytes() const override { return 4 * slot_elements_; }
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override;
  absl::Status AllocateHost(int32_t num_blocks, int64_t block_bytes) override;
  int64_t chunk_multiple() const override { return linear_->chunk_multiple(); }
  int64_t column_multiple() const override { return kColumns; }
  absl::StatusOr<Activations> AllocateActivations(int64_t cols) override;

  absl::Status BeginStep(const StepBatch& batch) override;
  void Embed(TableId table, float scale, Activations out) override;
  void Fill(VectorId values, Activations out) override;
  void Norm(Activations in, const NormArgs& norm, Activations out) override;
  void Project(Activations in, MatrixId matrix, Activations out,
               bool add) override;
  void Glu(Activations in, Activation activation, Activations out) override;
  void ChannelMixer(const ChannelMixerArgs& args) override;
  void Tpa(const TpaArgs& args) override;
  void ExpandFactors(const ExpandArgs& args) override;
  void LinearAttention(const LinearAttentionArgs& args) override;
  void GatedNorm(const GatedNormArgs& args) override;
  void Head(Activations in, const NormArgs& norm, MatrixId head) override;
  absl::Status EndStep(StepOutput* output) override;
  std::vector<StepBatch> WarmUpSteps() const override;
  bool runs_ahead() const override { return true; }

  absl::Status ClearPage(int32_t page) override;
  absl::Status ClearSlot(int32_t slot) override;
  absl::Status PoisonPage(int32_t page) override;
  absl::Status PoisonSlot(int32_t slot) override;
  absl::Status Save(const SavedMemory& memory) override;
  absl::Status Restore(const SavedMemory& memory) override;
  bool Restored(int32_t slot) override;

 private:
  static constexpr int64_t kColumns = 64;

  struct Table {
    WeightType type;
    int64_t vocab;
    int64_t cols;
    CudaMemory memory;
  };
  struct TpaCache {
    size_t shape;    // number in CudaTpa
    int64_t offset;  // elements from the start of a page
  };
  struct State {
    int64_t offset;  // elements from the start of a slot
  };
  // A step that was begun and not ended: all of its work is on the stream.
  struct Begun {
    int64_t number;
    absl::Span<const float> logits;
    absl::Status logits_status;
  };
  struct Graph {
    bool warm = false;  // ran once, so that no kernel is loaded during capture
    cudaGraphExec_t exec = nullptr;
  };

  static absl::Status CheckOptions(const Options& options);
  CudaBackend(const Options& options, std::unique_ptr<ThreadPool> threads);
  absl::Status Init();
  // Allocates what follows the memory of sequences.
  absl::Status AllocateWorkspaces(int32_t num_slots);

  // Keeps the first error.
  void Check(cudaError_t error, const char* what);
  void Check(const absl::Status& status);
  // Whether an operation must be put on the stream.
  bool active() const { return !replay_ && status_.ok(); }

  WeightType StorageFor(absl::Span<const MatrixPart> parts) const;
  static int64_t BucketOf(int64_t sequences);
  static int64_t RowCapacity(const Options& options);
  static TpaElement ElementOf(DType kv_dtype);
  static CudaTpa::Options TpaOptions(const Options& options);
  // Size of a step in a CudaStepBuffer, including `tpa` bytes for attention.
  static int64_t StepBytes(const Options& options, int64_t tpa);
  const float* Vector(VectorId id) const;  // null for the id -1
  TpaElement tpa_element() const { return ElementOf(options_.kv_dtype); }
  TpaCudaCache CacheView(const TpaCache& cache) const;

  absl::Status CheckBatch(const StepBatch& batch) const;
  void FillDecode(const StepBatch& batch);
  void FillMixed(const StepBatch& batch);
  void ComputeTables();
  CudaProducts::NormWeights WeightsOf(const NormArgs& norm) const;
  void BeginSamples(const StepBatch& batch);
  // Ends the current capture, if any. Instantiates the graph that replays the
  // step unless an error occurred.
  void EndCapture();
  // Logits of `rows` rows of `in` (`index`: on the device, null for all rows in
  // order) into logits_.
  void ComputeLogits(Activations in, const int32_t* index, int64_t rows,
                     const NormArgs& norm, MatrixId head);
  // Draws samples [first, first + count) from logits_.
  void Draw(int64_t vocab, int64_t first, int64_t count);
  void HeadOfDecode(Activations in, const NormArgs& norm, MatrixId head);
  void HeadOfMixed(Activations in, const NormArgs& norm, MatrixId head);
  // Makes room for logits on the host, if the step wants them there. Returns
  // whether to copy them.
  bool ReserveHostLogits(int64_t vocab);

  const Options options_;
  const std::unique_ptr<ThreadPool> threads_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaWeightLoader> loader_;  // until the cache is allocated
  absl::Status status_;

  std::unique_ptr<CudaProducts> products_;  // after Init
  uint64_t other_weight_bytes_ = 0;
  std::vector<CudaMemory> vectors_;
  std::vector<Table> tables_;
  CudaPositions positions_;
  std::optional<CudaTpa> tpa_;        // after Init
  bool whole_prompts_ = false;        // some layer of linear attention needs
                                      // them
  std::optional<CudaLinear> linear_;  // after Init
  TpaDevice device_ = {};
  std::vector<TpaCache> tpa_caches_;
  std::vector<State> states_;
  int64_t page_elements_ = 0;  // of all layers
  int64_t slot_elements_ = 0;
  CudaCacheMemory memory_;
  std::vector<CudaMemory> activations_;
  const int64_t row_capacity_;  // of activations
  CudaLogits logits_;
  CudaSampler sampler_;

  std::deque<Begun> begun_;  // two at most
  // Events of step i at index i modulo kEvents: its inputs arrived; it ended.
  // EndStep reads the end of the step before the one that it ends.
  static constexpr int64_t kEvents = 4;
  cudaEvent_t begins_[kEvents] = {};
  cudaEvent_t dones_[kEvents] = {};
  int64_t num_begun_ = 0;

  // The step being put on the stream; pointers are to the device.
  const StepBatch* batch_ = nullptr;
  absl::Status logits_status_;
  CudaStepBuffer step_;
  bool decode_ = false;  // every sequence has one generated token
  bool replay_ = false;  // a graph replays the whole step
  bool capturing_ = false;
  Graph* graph_ = nullptr;
  TpaContexts contexts_ = TpaContexts::kAny;  // for a decode step
  int64_t rows_ = 0;                          // in a launch, with padding
  int64_t sequences_ = 0;                     // in a launch, with padding
  int64_t page_stride_ = 0;
  const int32_t* tokens_ = nullptr;
  const int64_t* row_positions_ = nullptr;
  const int32_t* row_sequence_ = nullptr;
  const int32_t* query_start_ = nullptr;
  const int32_t* slots_of_ = nullptr;
  const int32_t* sources_ = nullptr;  // for fed tokens
  const int32_t* page_table_ = nullptr;
  const int32_t* logit_rows_ = nullptr;
  // For decode steps, by rows and the split of TPA's contexts.
  std::map<std::pair<int64_t, TpaContexts>, Graph> graphs_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_BACKEND_H_
