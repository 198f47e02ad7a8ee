#ifndef RECURVE_ENGINE_CUDA_CUDA_CACHE_MEMORY_H_
#define RECURVE_ENGINE_CUDA_CUDA_CACHE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_swap.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// The device part of CacheStorage: pages of TPA factors and slots of recurrent
// state, all layers side by side, and host memory for preempted sequences.
// Operations are put on the steps' stream, in order, and wait for copies of the
// page or slot in progress.
//
// Thread safety: none; the step thread.
class CudaCacheMemory {
 public:
  CudaCacheMemory() = default;

  // Pages 0 ... num_pages and slots 0 ... num_slots of `spec`, zeroed.
  // ResourceExhausted, naming the option to lower, if they do not fit. `steps`
  // outlives every call.
  absl::Status Allocate(const CacheSpec& spec, cudaStream_t steps);
  // To be called once, after Allocate; ResourceExhausted if the host lacks the
  // memory.
  absl::Status AllocateHost(int32_t num_blocks);

  char* pages() const { return pages_.data(); }
  char* slots() const { return slots_.data(); }
  const CacheSpec& spec() const { return spec_; }

  // Sets every byte of a page or slot to `value`.
  absl::Status SetPage(int32_t page, int value);
  absl::Status SetSlot(int32_t slot, int value);

  // REQUIRES: host memory, as does Restore.
  absl::Status Save(const SavedMemory& memory) { return swap_->Save(memory); }
  absl::Status Restore(const SavedMemory& memory) {
    return swap_->Restore(memory);
  }
  absl::Span<char> HostBlock(int32_t block) { return swap_->HostBlock(block); }
  absl::Status FinishCopies() { return swap_->Finish(); }
  // Whether the last copy of the slot's sequence is done.
  bool Restored(int32_t slot) { return swap_ == nullptr || swap_->Done(slot); }
  // Work put on the steps' stream afterwards runs after that copy.
  absl::Status AwaitSlot(int32_t slot);

  // For benchmarks: random values of type `dtype` for pages, float32 for slots.
  // Waits.
  absl::Status FillAtRandom(DType dtype);

 private:
  absl::Status SetBytes(const CudaMemory& memory, int64_t number, int64_t bytes,
                        int value);

  cudaStream_t steps_ = nullptr;
  CacheSpec spec_;
  CudaMemory pages_;
  CudaMemory slots_;
  std::unique_ptr<CudaSwap> swap_;  // null without host memory
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_CACHE_MEMORY_H_
