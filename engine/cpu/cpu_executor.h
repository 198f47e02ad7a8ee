#ifndef RECURVE_ENGINE_CPU_CPU_EXECUTOR_H_
#define RECURVE_ENGINE_CPU_CPU_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "engine/cpu/cpu_step.h"
#include "engine/program/executor.h"
#include "engine/program/plan.h"
#include "engine/program/program.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// The executable specification: float32 arithmetic on the CPU, every operation
// in an order fixed by the row alone, threads over rows, nothing fused. Weights
// may be stored in bfloat16 and are widened exactly; states and factors are
// float32.
class CpuExecutor : public Executor, private CpuStep {
 public:
  // `plan` is that of `program` for a CPU. `max_tokens`: rows in the largest
  // step.
  CpuExecutor(Program program, Plan plan, int64_t max_tokens,
              std::unique_ptr<ThreadPool> threads);

  absl::string_view name() const override { return "cpu"; }
  std::string weight_dtype() const override;
  absl::string_view kv_dtype() const override { return "float32"; }
  const Plan& plan() const override { return plan_; }

  absl::Status Load() override;
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override;
  absl::Status AllocateHost(int32_t num_blocks, int64_t block_bytes) override;

  absl::Status Begin(const StepBatch& batch) override;
  absl::Status End(StepOutput* output) override {
    *output = std::move(output_);
    return absl::OkStatus();
  }

  absl::Status ClearPage(int32_t page) override;
  absl::Status ClearSlot(int32_t slot) override;
  absl::Status PoisonPage(int32_t page) override;
  absl::Status PoisonSlot(int32_t slot) override;
  absl::Status Save(const SavedMemory& memory) override;
  absl::Span<char> HostBlock(int32_t block) override {
    return {host_.get() + (block - 1) * host_block_bytes_,
            static_cast<size_t>(host_block_bytes_)};
  }
  absl::Status Restore(const SavedMemory& memory) override;

 private:
  struct PositionTables {
    std::vector<uint64_t> phase_steps;  // exact angles
    std::vector<float> theta;           // float32 angles
    std::vector<float> cos, sin;        // [max_tokens, angles], for this step
  };
  // One layer's part of all pages, or of all slots.
  struct Part {
    int64_t elements;
    std::vector<float> memory;
  };
  struct Table {
    std::vector<char> bytes;
    TensorView view;
  };

  // --- CpuStep ---
  const StepBatch& batch() const override { return *batch_; }
  const int32_t* whole_prompt_rows() const override { return whole_.data(); }
  Activations View(const Slice& slice) const override;
  const float* vector(VectorId id) const override;
  Position position(PositionId id) const override;
  Pages pages(PagesId id) const override;
  States states(StateId id) const override;
  ThreadPool& threads() const override { return *threads_; }

  void LoadTable(const TensorView& table, DType type);
  void FillTables(const PositionConfig& config, PositionTables* tables) const;
  void NormRows(const float* in, int64_t in_stride, const NormWeights& norm,
                float* out, int64_t out_stride, int64_t rows, int64_t cols);
  // One operation on all rows of the step.
  void Run(const EmbedOp& op);
  void Run(const FillOp& op);
  void Run(const NormOp& op);
  void Run(const AddOp& op);
  void Run(const ProjectOp& op);
  void Run(const GluOp& op);
  void Run(const GatedNormOp& op);
  void Run(const ExpandOp& op);
  void Run(const SequenceOp& op);
  void Run(const HeadOp& op);

  void FillPage(int32_t page, float value);
  void FillSlot(int32_t slot, float value);
  // Calls copy(sequence memory, block memory, bytes) for every piece.
  template <typename Copy>
  void CopySaved(const SavedMemory& memory, Copy copy);

  Program program_;  // without weights, once they are loaded
  const Plan plan_;
  const int64_t max_tokens_;
  const std::unique_ptr<ThreadPool> threads_;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  // Behind pointers, because views point into them.
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<PositionTables> positions_;
  // Mutable through const methods of CpuStep: operations write to them.
  mutable std::vector<Part> pages_;
  mutable std::vector<Part> states_;
  mutable std::vector<std::vector<float>> buffers_;
  std::unique_ptr<char[]> host_;  // [blocks, host_block_bytes_]
  int64_t host_block_bytes_ = 0;
  std::vector<float> head_rows_;  // normalised and gathered rows
  std::vector<float> logits_;
  StepOutput output_;  // output of the step in progress
  const StepBatch* batch_ = nullptr;
  std::vector<int32_t> whole_;  // WholePromptRows of the step
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CPU_CPU_EXECUTOR_H_
