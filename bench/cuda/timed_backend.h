#ifndef RECURVE_BENCH_CUDA_TIMED_BACKEND_H_
#define RECURVE_BENCH_CUDA_TIMED_BACKEND_H_

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_backend.h"

namespace recurve {

// Forwards to a CudaBackend and measures each operation on the stream. The
// stream is held until all of a step is queued, so that host time does not
// count. A step must fit the stream's queue: use a model of few layers.
class TimedBackend : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<CudaBackend> backend)
      : backend_(std::move(backend)) {
    cudaStreamCreateWithFlags(&gate_stream_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&gate_, cudaEventDisableTiming);
  }

  CudaBackend& cuda() { return *backend_; }
  // Microseconds of each operation of the steps since Clear(), by name.
  const std::map<std::string, std::vector<double>>& times() const {
    return times_;
  }
  void Clear() { times_.clear(); }
  // Another batch follows: the stream is not held for two steps.
  void Restart() { steps_ = 0; }

  absl::string_view name() const override { return backend_->name(); }
  absl::string_view weight_dtype() const override {
    return backend_->weight_dtype();
  }
  absl::string_view state_dtype() const override {
    return backend_->state_dtype();
  }
  absl::string_view kv_dtype() const override { return backend_->kv_dtype(); }
  int64_t chunk_multiple() const override { return backend_->chunk_multiple(); }
  int64_t column_multiple() const override {
    return backend_->column_multiple();
  }
  absl::StatusOr<MatrixId> LoadMatrix(
      absl::Span<const MatrixPart> parts) override {
    RECURVE_ASSIGN_OR_RETURN(const MatrixId id, backend_->LoadMatrix(parts));
    int64_t outputs = 0;
    for (const MatrixPart& part : parts) outputs += part.rows();
    shapes_.push_back(
        absl::StrCat("[", outputs, ", ", parts[0].tensor.shape.back(), "]"));
    return id;
  }
  absl::StatusOr<VectorId> LoadVector(absl::Span<const float> values) override {
    return backend_->LoadVector(values);
  }
  absl::StatusOr<TableId> LoadEmbedding(const TensorView& table) override {
    return backend_->LoadEmbedding(table);
  }
  absl::StatusOr<PositionId> LoadPosition(
      const PositionConfig& config) override {
    return backend_->LoadPosition(config);
  }
  uint64_t weight_bytes() const override { return backend_->weight_bytes(); }
  TpaCacheId AddTpaCache(const TpaShape& shape) override {
    return backend_->AddTpaCache(shape);
  }
  StateId AddState(int64_t num_heads, int64_t key_dim, int64_t value_dim,
                   bool causal) override {
    return backend_->AddState(num_heads, key_dim, value_dim, causal);
  }
  int64_t page_bytes() const override { return backend_->page_bytes(); }
  int64_t slot_bytes() const override { return backend_->slot_bytes(); }
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override {
    return backend_->AllocateCache(num_pages, num_slots);
  }
  absl::Status AllocateHost(int32_t num_blocks, int64_t block_bytes) override {
    return backend_->AllocateHost(num_blocks, block_bytes);
  }
  absl::StatusOr<Activations> AllocateActivations(int64_t cols) override {
    return backend_->AllocateActivations(cols);
  }
  std::vector<StepBatch> WarmUpSteps() const override {
    return backend_->WarmUpSteps();
  }
  bool runs_ahead() const override { return backend_->runs_ahead(); }

  absl::Status BeginStep(const StepBatch& batch) override {
    spans_.clear();
    // First steps allocate, which waits for the stream.
    if (++steps_ > 2) {
      {
        const std::lock_guard lock(mu_);
        held_ = true;
      }
      cudaLaunchHostFunc(gate_stream_, &TimedBackend::Hold, this);
      cudaEventRecord(gate_, gate_stream_);
      cudaStreamWaitEvent(backend_->stream(), gate_);
    }
    absl::Status status;
    Timed("begin (copy, tables, schedules of prompts)",
          [&] { status = backend_->BeginStep(batch); });
    if (!status.ok()) Release();  // no Head follows
    return status;
  }
  void Embed(TableId table, float scale, Activations out) override {
    Timed("embed", [&] { backend_->Embed(table, scale, out); });
  }
  void Fill(VectorId values, Activations out) override {
    Timed("fill", [&] { backend_->Fill(values, out); });
  }
  void Norm(Activations in, const NormArgs& norm, Activations out) override {
    Timed("norm", [&] { backend_->Norm(in, norm, out); });
  }
  void Project(Activations in, MatrixId matrix, Activations out,
               bool add) override {
    Timed(absl::StrCat("project ", shapes_[matrix.value]),
          [&] { backend_->Project(in, matrix, out, add); });
  }
  void Glu(Activations in, Activation activation, Activations out) override {
    Timed("glu", [&] { backend_->Glu(in, activation, out); });
  }
  void ChannelMixer(const ChannelMixerArgs& args) override {
    Timed("channel mixer (norm, gate and up, down)",
          [&] { backend_->ChannelMixer(args); });
  }
  void Tpa(const TpaArgs& args) override {
    Timed("tpa (append, attend)", [&] { backend_->Tpa(args); });
  }
  void ExpandFactors(const ExpandArgs& args) override {
    Timed("expand factors", [&] { backend_->ExpandFactors(args); });
  }
  void LinearAttention(const LinearAttentionArgs& args) override {
    Timed("linear attention", [&] { backend_->LinearAttention(args); });
  }
  void GatedNorm(const GatedNormArgs& args) override {
    Timed("gated norm", [&] { backend_->GatedNorm(args); });
  }
  void Head(Activations in, const NormArgs& norm, MatrixId head) override {
    Release();
    Timed("head (norm, logits, tokens to the host)",
          [&] { backend_->Head(in, norm, head); });
  }
  absl::Status EndStep(StepOutput* output) override {
    RECURVE_RETURN_IF_ERROR(backend_->EndStep(output));
    cudaStreamSynchronize(backend_->stream());
    for (const Span& span : spans_) {
      float ms = 0;
      cudaEventElapsedTime(&ms, span.begin, span.end);
      times_[span.name].push_back(1e3 * ms);
      free_.push_back(span.begin);
      free_.push_back(span.end);
    }
    return absl::OkStatus();
  }

  absl::Status ClearPage(int32_t page) override {
    return backend_->ClearPage(page);
  }
  absl::Status ClearSlot(int32_t slot) override {
    return backend_->ClearSlot(slot);
  }
  absl::Status PoisonPage(int32_t page) override {
    return backend_->PoisonPage(page);
  }
  absl::Status PoisonSlot(int32_t slot) override {
    return backend_->PoisonSlot(slot);
  }
  absl::Status Save(const SavedMemory& memory) override {
    return backend_->Save(memory);
  }
  absl::Status Restore(const SavedMemory& memory) override {
    return backend_->Restore(memory);
  }
  bool Restored(int32_t slot) override { return backend_->Restored(slot); }

 private:
  struct Span {
    std::string name;
    cudaEvent_t begin, end;
  };

  static void Hold(void* self) {
    auto* const backend = static_cast<TimedBackend*>(self);
    std::unique_lock lock(backend->mu_);
    backend->changed_.wait(lock, [backend] { return !backend->held_; });
  }
  // Lets the stream continue.
  void Release() {
    {
      const std::lock_guard lock(mu_);
      held_ = false;
    }
    changed_.notify_all();
  }
  cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      cudaEventCreate(&event);
    } else {
      event = free_.back();
      free_.pop_back();
    }
    cudaEventRecord(event, backend_->stream());
    return event;
  }
  template <typename Body>
  void Timed(std::string name, Body&& body) {
    const cudaEvent_t begin = NewEvent();
    body();
    spans_.push_back({std::move(name), begin, NewEvent()});
  }

  std::unique_ptr<CudaBackend> backend_;
  std::vector<std::string> shapes_;
  std::vector<Span> spans_;
  std::vector<cudaEvent_t> free_;
  std::map<std::string, std::vector<double>> times_;
  cudaStream_t gate_stream_ = nullptr;
  cudaEvent_t gate_ = nullptr;
  std::mutex mu_;
  std::condition_variable changed_;
  bool held_ = false;
  int steps_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_TIMED_BACKEND_H_
