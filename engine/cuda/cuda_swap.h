#ifndef RECURVE_ENGINE_CUDA_CUDA_SWAP_H_
#define RECURVE_ENGINE_CUDA_CUDA_SWAP_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Memory of preempted sequences, in page-locked memory of the host; copies run
// on a separate stream, concurrently with steps.
//
// Order. A copy waits for all earlier work on the steps' stream. Copies run one
// after the other, so a block may be reused immediately. Before work on the
// steps' stream writes to a page or slot, or reads a slot's sequence, its
// caller must call Await for it; only the device waits. Pages are copied first
// to last and awaited one by one, as is the slot, which is saved before them: a
// page or slot handed over in a step delays that step by its own copy, not by
// all of them.
//
// Pages that sequences share are not copied, and are in order without a wait of
// their own. They were written by earlier work on the steps' stream, or by
// copies of earlier Restores. The event of a restored slot is recorded behind
// these on the stream of copies, even if Restore has nothing to copy, so a step
// that awaits its slot awaits them. A step that shares a page may run alongside
// a Save of it: both read. To overwrite a page that no sequence holds, SetPage
// awaits its last copy and follows all steps on their stream, and a Restore
// follows both.
//
// Thread safety: none; the step thread.
class CudaSwap {
 public:
  // Pages 0 ... num_pages and slots 0 ... num_slots of `spec` on the device.
  // ResourceExhausted if the host lacks page-locked memory for
  // spec.num_host_blocks. `steps` outlives every call.
  static absl::StatusOr<std::unique_ptr<CudaSwap>> Create(cudaStream_t steps,
                                                          const CacheSpec& spec,
                                                          char* pages,
                                                          char* slots);
  // Waits for copies in progress.
  ~CudaSwap();
  CudaSwap(const CudaSwap&) = delete;
  CudaSwap& operator=(const CudaSwap&) = delete;

  absl::Status Save(const SavedMemory& memory);
  absl::Status Restore(const SavedMemory& memory);

  // These two may be called on any thread.
  absl::Span<char> HostBlock(int32_t block) {
    const int64_t bytes = HostBlockBytes(spec_);
    return {host_.data() + (block - 1) * bytes, static_cast<size_t>(bytes)};
  }
  // Waits for all copies that were begun.
  absl::Status Finish();

  // Work put on the steps' stream afterwards runs after the last copy of it. A
  // slot is restored after its sequence's pages, so its copy is the last.
  absl::Status AwaitPage(int32_t page) { return Await(page_copies_[page]); }
  absl::Status AwaitSlot(int32_t slot) { return Await(slot_copies_[slot]); }

  // Whether the last copy of the slot to the device is done, and so all of a
  // restored sequence. A copy from the
  // device holds no sequence up: only the device waits for it.
  bool Done(int32_t slot);

 private:
  // The last copy of a page or slot.
  struct Copy {
    cudaEvent_t done = nullptr;  // made when first needed
    bool pending = false;        // the steps' stream does not wait for it yet
    bool restores = false;       // to the device
  };

  CudaSwap(cudaStream_t steps, const CacheSpec& spec, char* pages, char* slots)
      : steps_(steps), spec_(spec), pages_(pages), slots_(slots) {}
  absl::Status Begin();
  // `kind` gives the direction.
  absl::Status CopyPages(const SavedMemory& memory, cudaMemcpyKind kind);
  absl::Status CopySlot(const SavedMemory& memory, cudaMemcpyKind kind);
  // Block `index` of a saved sequence, pages first.
  char* Block(const SavedMemory& memory, size_t index) const;
  absl::Status CopyBytes(char* device, char* host, int64_t bytes,
                         cudaMemcpyKind kind);
  absl::Status Mark(Copy& copy, cudaMemcpyKind kind);
  absl::Status Await(Copy& copy);

  const cudaStream_t steps_;
  const CacheSpec spec_;
  char* const pages_;
  char* const slots_;
  CudaMemory host_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t steps_done_ = nullptr;
  std::vector<Copy> page_copies_;  // [num_pages + 1]
  std::vector<Copy> slot_copies_;  // [num_slots + 1]
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_SWAP_H_
