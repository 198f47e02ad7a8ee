#ifndef RECURVE_ENGINE_CUDA_CUDA_EXECUTOR_H_
#define RECURVE_ENGINE_CUDA_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "engine/cuda/cuda_cache_memory.h"
#include "engine/cuda/cuda_logits.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/cuda/cuda_positions.h"
#include "engine/cuda/cuda_products.h"
#include "engine/cuda/cuda_sampler.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/program/executor.h"
#include "engine/program/plan.h"
#include "engine/program/program.h"
#include "engine/program/sequence_operation.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// Sees each launch of a step: for benchmarks.
class LaunchProbe {
 public:
  virtual ~LaunchProbe() = default;
  virtual void BeforeStep() = 0;
  virtual void Before(const std::string& name) = 0;
  virtual void After() = 0;
  // The step is on the stream.
  virtual void AfterStep() = 0;
};

// A program on one GPU and one stream, except for copies from and to the host.
// Weights are 16-bit or float32, recurrent states are float32, TPA factors
// 16-bit; activations are float32, except those read only by products, which
// have the weights' type. All memory is allocated before the first step; a
// step's inputs are copied to fixed addresses in one transfer, which overlaps
// the previous step.
//
// What a step launches was decided when the program was loaded (PlanLaunches),
// for each form of step: the methods here put that list on the stream.
//
// Exactness: every kernel computes a row from that row alone. Steps and prompts
// (TokenKind) mostly use different kernels for attention and for products with
// 16-bit weights; each kernel has one summation order for every number of rows.
//
// Steps in which every sequence has one token of kStep are captured in a CUDA
// graph for each power of two of sequences and for each variant of their
// operations (CudaOperations::Variant), and replayed; the graph's extra rows
// are padding in page and slot 0.
//
// All work of a step, and on pages and slots, is put on the stream in order;
// End waits for the event after its step. So two steps may be in flight.
//
// Two executors of a process must not run steps on one device at the same time:
// some kernels have blocks that wait for each other and must all be resident
// (LaunchTpaDecode, LaunchProductChain).
//
// Errors of the device are kept and returned by End. Missing host memory for
// logits is not one of them (StepOutput::logits_status).
class CudaExecutor : public Executor, private CudaView {
 public:
  struct Options {
    int64_t max_tokens = 0;     // rows in the largest step, <= 65535
    int64_t max_sequences = 0;  // in a step
    int64_t max_pages = 0;      // of a sequence
    bool graphs = true;
  };
  // `plan` is that of `program` for this device. `threads`: to load weights.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(
      Program program, Plan plan, const Options& options,
      std::unique_ptr<ThreadPool> threads);
  ~CudaExecutor() override;
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  // Device memory that an executor takes in addition to weights and the memory
  // of sequences; no GPU memory is needed to ask. InvalidArgument, with the
  // limit.
  struct Workspaces {
    int64_t attention = 0;  // operations of sequences, and the steps' inputs
    int64_t sampling = 0;   // and logits
    int64_t activations = 0;
  };
  static absl::StatusOr<Workspaces> PlanWorkspaces(const Program& program,
                                                   const Plan& plan,
                                                   const Options& options);

  // For benchmarks: the stream on which all work is put.
  cudaStream_t stream() const override { return stream_; }
  // For benchmarks: gives every page and slot random values, because zeros are
  // multiplied faster. Waits.
  absl::Status FillCacheAtRandom();
  // For benchmarks, without graphs. It outlives the executor.
  void SetProbe(LaunchProbe* probe) { probe_ = probe; }

  absl::string_view name() const override { return "cuda"; }
  std::string weight_dtype() const override { return plan_.weight_dtype(); }
  absl::string_view kv_dtype() const override {
    return Name(plan_.device.pages);
  }
  const Plan& plan() const override { return plan_; }

  absl::Status Load() override;
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override;
  absl::Status AllocateHost(int32_t num_blocks, int64_t block_bytes) override;

  absl::Status Begin(const StepBatch& batch) override;
  absl::Status End(StepOutput* output) override;
  std::vector<StepBatch> WarmUpSteps() const override;
  bool runs_ahead() const override { return true; }

  absl::Status ClearPage(int32_t page) override;
  absl::Status ClearSlot(int32_t slot) override;
  absl::Status PoisonPage(int32_t page) override;
  absl::Status PoisonSlot(int32_t slot) override;
  absl::Status Save(const SavedMemory& memory) override;
  absl::Status Restore(const SavedMemory& memory) override;
  absl::Span<char> HostBlock(int32_t block) override;
  absl::Status FinishCopies() override;
  bool Restored(int32_t slot) override;

 private:
  struct Table {
    WeightType type;
    int64_t vocab;
    int64_t cols;
    CudaMemory memory;
  };
  // A step that was begun and not ended: all of its work is on the stream.
  struct Begun {
    int64_t number;
    absl::Span<const float> logits;
    absl::Status logits_status;
    int64_t kept = 0;  // rows
  };
  struct Graph {
    bool warm = false;  // ran once, so that no kernel is loaded during capture
    cudaGraphExec_t exec = nullptr;
  };
  // The operations of one kind, and its share of a variant's number.
  struct Kind {
    std::string name;
    std::unique_ptr<CudaOperations> operations;
    int64_t table_row = 0;  // first of its own rows
    int64_t variant = 0;    // of the decode step in progress
  };

  static absl::Status CheckOptions(const Options& options);
  static absl::StatusOr<std::vector<Kind>> MakeKinds(const Program& program,
                                                     const Plan& plan,
                                                     const Options& options);
  static int64_t BucketOf(int64_t sequences);
  static int64_t RowCapacity(const Options& options);
  // Rows of the position tables.
  static int64_t TableRows(const Options& options,
                           const std::vector<Kind>& kinds);
  // Size of a step in a CudaStepBuffer.
  static int64_t StepBytes(const Options& options,
                           const std::vector<Kind>& kinds);

  CudaExecutor(Program program, Plan plan, const Options& options,
               std::unique_ptr<ThreadPool> threads);
  absl::Status Init();
  absl::Status LoadWeights(CudaWeightLoader* loader);
  absl::Status LoadVector(const std::vector<float>& values);
  absl::Status LoadTable(const TensorView& table, DType type,
                         CudaWeightLoader* loader);
  // Allocates what follows the memory of sequences.
  absl::Status AllocateWorkspaces(int32_t num_slots);
  // The launches of every form of step.
  void PlanSteps();

  // Keeps the first error.
  void Check(cudaError_t error, const char* what);
  void Check(const absl::Status& status);
  // Whether an operation must be put on the stream.
  bool active() const { return !replay_ && status_.ok(); }

  // --- CudaView ---
  const CudaStep& step() const override { return step_; }
  Activations View(const Slice& slice) const override;
  const float* vector(VectorId id) const override;
  const CudaPositions::Encoding& position(PositionId id) const override {
    return positions_[id];
  }
  Pages pages(PagesId id) const override;
  States states(StateId id) const override;

  // --- Begin (cuda_executor_step.cc) ---
  absl::Status CheckBatch(const StepBatch& batch) const;
  void FillDecode(const StepBatch& batch);
  void FillMixed(const StepBatch& batch);
  void ComputeTables();
  void BeginSamples(const StepBatch& batch);
  // Ends the current capture, if any. Instantiates the graph that replays the
  // step unless an error occurred.
  void EndCapture();
  // Puts the step's launches on the stream, and replays or ends its graph.
  void LaunchAll();
  void CopyLogits();
  // Draws samples [first, first + count) from logits_.
  void Draw(int64_t first, int64_t count);
  // Makes room for logits on the host, if the step wants them there. Returns
  // whether to copy them.
  bool ReserveHostLogits();

  // --- Launches (cuda_executor_ops.cc) ---
  void Run(const Launch& launch);
  void RunOne(const Launch& launch);
  template <typename Op>
  const Op& OpAt(int32_t i) const {
    return std::get<Op>(program_.operations[i]);
  }
  // The gated unit of operations [i, i + 4).
  CudaProducts::GatedUnit UnitAt(int32_t i) const;
  CudaProducts::Norm WeightsOf(const NormWeights& norm) const;
  CudaOperations& KindOf(const SequenceOperation& operation) const;
  absl::Status RunChain(const Launch& launch);
  absl::Status Run(const Launch& launch, const EmbedOp& op);
  absl::Status Run(const Launch& launch, const FillOp& op);
  absl::Status Run(const Launch& launch, const NormOp& op);
  absl::Status Run(const Launch& launch, const AddOp& op);
  absl::Status Run(const Launch& launch, const ProjectOp& op);
  absl::Status Run(const Launch& launch, const GluOp& op);
  absl::Status Run(const Launch& launch, const GatedNormOp& op);
  absl::Status Run(const Launch& launch, const ExpandOp& op);
  absl::Status Run(const Launch& launch, const SequenceOp& op);
  absl::Status Run(const Launch& launch, const HeadOp& op);
  // Logits of `rows` rows (`index`: on the device, null for all rows in order)
  // into logits_.
  absl::Status ComputeLogits(const Launch& launch, const HeadOp& op,
                             const int32_t* index, int64_t rows);

  Program program_;  // without weights, once they are loaded
  const Plan plan_;
  const Options options_;
  const std::unique_ptr<ThreadPool> threads_;
  cudaStream_t stream_ = nullptr;
  absl::Status status_;
  LaunchProbe* probe_ = nullptr;

  std::unique_ptr<CudaProducts> products_;  // after Init
  std::vector<CudaMemory> vectors_;
  std::vector<Table> tables_;
  CudaPositions positions_;
  std::vector<Kind> kinds_;  // after Init
  CudaCacheMemory memory_;
  std::vector<CudaMemory> buffers_;
  const int64_t row_capacity_;  // of activations
  CudaLogits logits_;
  CudaSampler sampler_;
  // For decode steps, by rows; for others, by whether all rows are multiplied
  // as those of steps.
  std::map<int64_t, std::vector<Launch>> decode_launches_;
  std::vector<Launch> mixed_launches_[2];

  std::deque<Begun> begun_;  // two at most
  // Events of step i at index i modulo kEvents: its inputs arrived; it ended.
  // End reads the end of the step before the one that it ends.
  static constexpr int64_t kEvents = 4;
  cudaEvent_t begins_[kEvents] = {};
  cudaEvent_t dones_[kEvents] = {};
  int64_t num_begun_ = 0;

  // The step being put on the stream.
  const StepBatch* batch_ = nullptr;
  absl::Status logits_status_;
  CudaStepBuffer buffer_;
  CudaStep step_;
  bool replay_ = false;  // a graph replays the whole step
  bool capturing_ = false;
  Graph* graph_ = nullptr;
  // For decode steps, by rows and variant.
  std::map<std::pair<int64_t, int64_t>, Graph> graphs_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_EXECUTOR_H_
