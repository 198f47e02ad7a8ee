#ifndef RECURVE_ENGINE_CPU_CPU_BACKEND_H_
#define RECURVE_ENGINE_CPU_CPU_BACKEND_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "engine/models/backend.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// The executable specification: float32 arithmetic on the CPU, every operation
// in an order fixed by the row alone, threads over rows. Weights may be stored
// in bfloat16 and are widened exactly; states and factors are float32.
class CpuBackend : public Backend {
 public:
  struct Options {
    // kFloat32 or kBFloat16 (rounding wider weights). Absent: bfloat16 for
    // matrices stored in it, else float32; exact either way.
    std::optional<DType> weight_dtype;
    int64_t max_tokens = 0;  // rows in the largest step
  };
  CpuBackend(const Options& options, std::unique_ptr<ThreadPool> threads)
      : options_(options), threads_(std::move(threads)), pool_(*threads_) {}

  absl::string_view name() const override { return "cpu"; }
  absl::string_view weight_dtype() const override;
  absl::string_view state_dtype() const override { return "float32"; }
  absl::string_view kv_dtype() const override { return "float32"; }

  absl::StatusOr<MatrixId> LoadMatrix(
      absl::Span<const MatrixPart> parts) override;
  absl::StatusOr<VectorId> LoadVector(absl::Span<const float> values) override;
  absl::StatusOr<TableId> LoadEmbedding(const TensorView& table) override;
  absl::StatusOr<PositionId> LoadPosition(
      const PositionConfig& config) override;
  uint64_t weight_bytes() const override { return weight_bytes_; }

  TpaCacheId AddTpaCache(const TpaShape& shape) override;
  StateId AddState(int64_t num_heads, int64_t key_dim, int64_t value_dim,
                   bool causal) override;
  int64_t page_bytes() const override;
  int64_t slot_bytes() const override;
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override;
  absl::Status AllocateHost(int32_t num_blocks, int64_t block_bytes) override;
  absl::StatusOr<Activations> AllocateActivations(int64_t cols) override;

  absl::Status BeginStep(const StepBatch& batch) override;
  void Embed(TableId table, float scale, Activations out) override;
  void Fill(VectorId values, Activations out) override;
  void Norm(Activations in, const NormArgs& norm, Activations out) override;
  void Project(Activations in, MatrixId matrix, Activations out,
               bool add) override;
  void Glu(Activations in, Activation activation, Activations out) override;
  void Tpa(const TpaArgs& args) override;
  void ExpandFactors(const ExpandArgs& args) override;
  void LinearAttention(const LinearAttentionArgs& args) override;
  void GatedNorm(const GatedNormArgs& args) override;
  void Head(Activations in, const NormArgs& norm, MatrixId head) override;
  absl::Status EndStep(StepOutput* output) override {
    *output = std::move(output_);
    return absl::OkStatus();
  }

  absl::Status ClearPage(int32_t page) override;
  absl::Status ClearSlot(int32_t slot) override;
  absl::Status PoisonPage(int32_t page) override;
  absl::Status PoisonSlot(int32_t slot) override;
  absl::Status Save(const SavedMemory& memory) override;
  absl::Status Restore(const SavedMemory& memory) override;

 private:
  struct Position {
    PositionConfig config;
    int64_t angles;
    std::vector<uint64_t> phase_steps;  // exact angles
    std::vector<float> theta;           // float32 angles
    std::vector<float> cos, sin;        // [max_tokens, angles], for this step
  };
  struct TpaCache {
    TpaShape shape;
    int64_t page_elements;
    std::vector<float> pages;
  };
  struct State {
    int64_t slot_elements;
    std::vector<float> slots;
  };
  struct Table {
    std::vector<char> bytes;
    TensorView view;
  };

  // The storage type for these tensors.
  DType StorageFor(absl::Span<const MatrixPart> parts) const;
  // The vector, or null for the id -1.
  const float* OptionalVector(VectorId id) const;
  void NormRows(const float* in, int64_t in_stride, const NormArgs& norm,
                float* out, int64_t out_stride, int64_t rows, int64_t cols);
  void FillTables(Position& position);
  void FillPage(int32_t page, float value);
  void FillSlot(int32_t slot, float value);
  // Calls copy(sequence memory, block memory, bytes) for every piece.
  template <typename Copy>
  void CopySaved(const SavedMemory& memory, Copy copy);
  struct TpaCacheView CacheView(TpaCache& cache) const;

  const Options options_;
  const std::unique_ptr<ThreadPool> threads_;
  ThreadPool& pool_;
  uint64_t weight_bytes_ = 0;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  // Behind pointers, because views point into them.
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<Position> positions_;
  std::vector<TpaCache> tpa_caches_;
  std::vector<State> states_;
  std::unique_ptr<char[]> host_;  // [blocks, host_block_bytes_]
  int64_t host_block_bytes_ = 0;
  std::vector<std::vector<float>> activations_;
  std::vector<float> head_rows_;  // normalised and gathered rows
  std::vector<float> logits_;
  StepOutput output_;  // output of the step in progress
  const StepBatch* batch_ = nullptr;
  std::vector<int32_t> whole_;  // WholePromptRows of the step
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CPU_CPU_BACKEND_H_
