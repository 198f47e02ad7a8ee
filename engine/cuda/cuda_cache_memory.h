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

// The device's side of CacheStorage: pages of TPA factors and slots of
// recurrent state, of all layers side by side, and host memory that preempted
// sequences are saved in. What is asked for is put on the steps' stream, in
// order, and waits for copies of the page or slot that are under way.
//
// Thread safety: none; the step thread.
class CudaCacheMemory {
 public:
  CudaCacheMemory() = default;

  // Pages 0 ... num_pages and slots 0 ... num_slots of `spec`, zero.
  // ResourceExhausted, with what to lower, if they do not fit. `steps` outlives
  // every call.
  absl::Status Allocate(const CacheSpec& spec, cudaStream_t steps);
  // Once, after Allocate; ResourceExhausted if the host has no such memory.
  absl::Status AllocateHost(int32_t num_blocks);

  char* pages() const { return pages_.data(); }
  char* slots() const { return slots_.data(); }
  const CacheSpec& spec() const { return spec_; }

  // Every byte of a page or slot becomes `value`.
  absl::Status SetPage(int32_t page, int value);
  absl::Status SetSlot(int32_t slot, int value);

  // REQUIRES, of both: host memory.
  absl::Status Save(const SavedMemory& memory) { return swap_->Save(memory); }
  absl::Status Restore(const SavedMemory& memory) {
    return swap_->Restore(memory);
  }
  // Whether the last copy of the slot's sequence is done.
  bool Restored(int32_t slot) { return swap_ == nullptr || swap_->Done(slot); }
  // What comes next on the steps' stream runs after that copy.
  absl::Status AwaitSlot(int32_t slot);

  // For benchmarks: gives pages values of `dtype`, and slots float32 ones, at
  // random. Waits.
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
