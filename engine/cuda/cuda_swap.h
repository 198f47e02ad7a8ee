#ifndef RECURVE_ENGINE_CUDA_CUDA_SWAP_H_
#define RECURVE_ENGINE_CUDA_CUDA_SWAP_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Saved memory of sequences, in page-locked memory of the host; copies run on a
// separate stream, concurrently with steps.
//
// Order. A copy waits for all earlier work on the steps' stream. Copies run one
// after the other, so a block may be reused immediately. Before work on the
// steps' stream writes to a page or slot, or reads a slot's sequence, its
// caller must call Await for it; only the device waits. Pages are copied first
// to last and awaited one by one: a page handed over in a step delays that step
// by its own copy, not by all of them.
//
// A slot is saved in two copies. The first, on the steps' stream, is into
// memory of the device: the sequence's next step overwrites the slot, and waits
// for some microseconds instead of the bus. With all of that memory in use, it
// waits for the oldest copy to the host.
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
  // Slots of the device's memory for what is on its way to the host.
  static constexpr int32_t NumStagedSlots(int32_t num_slots) {
    return std::clamp(num_slots / 8, 1, 8);
  }

  // Pages 0 ... num_pages and slots 0 ... num_slots of `spec` on the device.
  // ResourceExhausted if the host lacks page-locked memory for
  // spec.num_host_blocks, or the device for NumStagedSlots slots. `steps`
  // outlives every call.
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

  // Work put on the steps' stream afterwards runs after the last copy of it on
  // the other stream. A slot is restored after its sequence's pages, so its
  // copy is the last.
  absl::Status AwaitPage(int32_t page) { return Await(page_copies_[page]); }
  absl::Status AwaitSlot(int32_t slot) { return Await(slot_copies_[slot]); }

  // Whether the last copy of the slot to the device is done, and so all of a
  // restored sequence.
  bool Done(int32_t slot);

 private:
  // The last copy of a page or slot, or from a staged slot.
  struct Copy {
    cudaEvent_t done = nullptr;  // made when first needed
    bool pending = false;        // the steps' stream does not wait for it yet
  };

  CudaSwap(cudaStream_t steps, const CacheSpec& spec, char* pages, char* slots)
      : steps_(steps), spec_(spec), pages_(pages), slots_(slots) {}
  absl::Status Begin();
  // `kind` gives the direction.
  absl::Status CopyPages(const SavedMemory& memory, cudaMemcpyKind kind);
  // `slot` is that of `memory`, or where it is staged.
  absl::Status CopySlot(const SavedMemory& memory, char* slot,
                        cudaMemcpyKind kind);
  // Copies the slot on the steps' stream. Returns the number of the copy.
  absl::StatusOr<int32_t> Stage(int32_t slot);
  char* StagedSlot(int32_t index) const {
    return staged_.data() + index * spec_.slot_bytes;
  }
  // Block `index` of a saved sequence, pages first.
  char* Block(const SavedMemory& memory, size_t index) const;
  absl::Status CopyBytes(char* device, char* host, int64_t bytes,
                         cudaMemcpyKind kind);
  absl::Status Mark(Copy& copy);
  absl::Status Await(Copy& copy);

  const cudaStream_t steps_;
  const CacheSpec spec_;
  char* const pages_;
  char* const slots_;
  CudaMemory host_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t steps_done_ = nullptr;
  std::vector<Copy> page_copies_;  // [num_pages + 1]
  std::vector<Copy> slot_copies_;  // [num_slots + 1], to the device
  CudaMemory staged_;              // [NumStagedSlots, slot_bytes]
  std::vector<Copy> staged_copies_;
  int32_t next_staged_ = 0;
  // The pieces of a slot; kept to allocate nothing while serving.
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_SWAP_H_
