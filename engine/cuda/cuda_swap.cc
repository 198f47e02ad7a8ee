#include "engine/cuda/cuda_swap.h"

#include "base/status_macros.h"
#include "kernels/rows/rows_cuda.h"
#include "kv_cache/block_pieces.h"

namespace recurve {

absl::StatusOr<std::unique_ptr<CudaSwap>> CudaSwap::Create(
    cudaStream_t steps, const CacheSpec& spec, char* pages, char* slots) {
  auto swap =
      std::unique_ptr<CudaSwap>(new CudaSwap(steps, spec, pages, slots));
  RECURVE_ASSIGN_OR_RETURN(
      swap->host_,
      CudaMemory::Allocate(CudaMemory::Kind::kHost,
                           spec.num_host_blocks * HostBlockBytes(spec),
                           "preempted sequences; lower --swap-bytes"));
  const int32_t staged = NumStagedSlots(spec.num_slots);
  RECURVE_ASSIGN_OR_RETURN(
      swap->staged_,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, staged * spec.slot_bytes,
                           "saved slots; lower --max-num-seqs"));
  swap->staged_copies_.resize(staged);
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&swap->stream_, cudaStreamNonBlocking),
      "stream of copies"));
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaEventCreateWithFlags(&swap->steps_done_, cudaEventDisableTiming),
      "event of copies"));
  swap->page_copies_.resize(spec.num_pages + 1);
  swap->slot_copies_.resize(spec.num_slots + 1);
  return swap;
}

CudaSwap::~CudaSwap() {
  if (stream_ == nullptr) return;
  (void)cudaStreamSynchronize(stream_);
  for (auto* copies : {&page_copies_, &slot_copies_, &staged_copies_}) {
    for (const Copy& copy : *copies) {
      if (copy.done != nullptr) cudaEventDestroy(copy.done);
    }
  }
  if (steps_done_ != nullptr) cudaEventDestroy(steps_done_);
  cudaStreamDestroy(stream_);
}

absl::Status CudaSwap::Begin() {
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(steps_done_, steps_), "end of a step"));
  return CudaStatus(cudaStreamWaitEvent(stream_, steps_done_, 0),
                    "waiting for a step");
}

absl::Status CudaSwap::CopyBytes(char* device, char* host, int64_t bytes,
                                 cudaMemcpyKind kind) {
  const bool out = kind == cudaMemcpyDeviceToHost;
  return CudaStatus(cudaMemcpyAsync(out ? host : device, out ? device : host,
                                    bytes, kind, stream_),
                    "copying the memory of a sequence");
}

char* CudaSwap::Block(const SavedMemory& memory, size_t index) const {
  return host_.data() + (memory.blocks[index] - 1) * HostBlockBytes(spec_);
}

absl::Status CudaSwap::CopyPages(const SavedMemory& memory,
                                 cudaMemcpyKind kind) {
  for (size_t i = 0; i < memory.pages.size(); ++i) {
    const int32_t page = memory.pages[i];
    RECURVE_RETURN_IF_ERROR(CopyBytes(pages_ + page * spec_.page_bytes,
                                      Block(memory, i), spec_.page_bytes,
                                      kind));
    RECURVE_RETURN_IF_ERROR(Mark(page_copies_[page]));
  }
  return absl::OkStatus();
}

absl::Status CudaSwap::CopySlot(const SavedMemory& memory, char* slot,
                                cudaMemcpyKind kind) {
  if (spec_.slot_bytes == 0) return absl::OkStatus();
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  ForEachBlockPiece(
      0, spec_.slot_bytes, HostBlockBytes(spec_),
      [&](int64_t index, int64_t offset, int64_t from, int64_t bytes) {
        char* const device = slot + from;
        char* const host = Block(memory, memory.pages.size() + index) + offset;
        const bool out = kind == cudaMemcpyDeviceToHost;
        targets_.push_back(out ? host : device);
        sources_.push_back(out ? device : host);
        sizes_.push_back(static_cast<size_t>(bytes));
      });
#if CUDART_VERSION >= 13000
  // A slot may have a hundred pieces, and the step thread starts them: one
  // call.
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  return CudaStatus(
      cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(),
                           sizes_.size(), &attributes, &first, 1, stream_),
      "copying a slot");
#else
  for (size_t i = 0; i < sizes_.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], kind, stream_),
        "copying a slot"));
  }
  return absl::OkStatus();
#endif
}

absl::StatusOr<int32_t> CudaSwap::Stage(int32_t slot) {
  const int32_t index = next_staged_;
  next_staged_ =
      (next_staged_ + 1) % static_cast<int32_t>(staged_copies_.size());
  RECURVE_RETURN_IF_ERROR(AwaitSlot(slot));
  RECURVE_RETURN_IF_ERROR(Await(staged_copies_[index]));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(LaunchCopy({slots_ + slot * spec_.slot_bytes,
                             StagedSlot(index), spec_.slot_bytes},
                            steps_),
                 "copying a slot"));
  return index;
}

absl::Status CudaSwap::Save(const SavedMemory& memory) {
  constexpr cudaMemcpyKind kOut = cudaMemcpyDeviceToHost;
  int32_t staged = 0;
  if (spec_.slot_bytes != 0) {
    RECURVE_ASSIGN_OR_RETURN(staged, Stage(memory.slot));
  }
  RECURVE_RETURN_IF_ERROR(Begin());
  if (spec_.slot_bytes != 0) {
    RECURVE_RETURN_IF_ERROR(CopySlot(memory, StagedSlot(staged), kOut));
    RECURVE_RETURN_IF_ERROR(Mark(staged_copies_[staged]));
  }
  return CopyPages(memory, kOut);
}

// The slot last, also if it has no bytes: its event marks the whole sequence as
// restored, with the pages that earlier Restores copy and it shares.
absl::Status CudaSwap::Restore(const SavedMemory& memory) {
  constexpr cudaMemcpyKind kIn = cudaMemcpyHostToDevice;
  RECURVE_RETURN_IF_ERROR(Begin());
  RECURVE_RETURN_IF_ERROR(CopyPages(memory, kIn));
  RECURVE_RETURN_IF_ERROR(
      CopySlot(memory, slots_ + memory.slot * spec_.slot_bytes, kIn));
  return Mark(slot_copies_[memory.slot]);
}

absl::Status CudaSwap::Finish() {
  return CudaStatus(cudaStreamSynchronize(stream_), "waiting for copies");
}

absl::Status CudaSwap::Mark(Copy& copy) {
  if (copy.done == nullptr) {
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&copy.done, cudaEventDisableTiming),
                   "event of a copy"));
  }
  copy.pending = true;
  return CudaStatus(cudaEventRecord(copy.done, stream_), "end of a copy");
}

absl::Status CudaSwap::Await(Copy& copy) {
  if (!copy.pending) return absl::OkStatus();
  copy.pending = false;
  return CudaStatus(cudaStreamWaitEvent(steps_, copy.done, 0),
                    "waiting for a copy");
}

bool CudaSwap::Done(int32_t slot) {
  const Copy& copy = slot_copies_[slot];
  if (!copy.pending) return true;
  if (cudaEventQuery(copy.done) != cudaErrorNotReady) return true;
  (void)cudaGetLastError();  // the next call returns the same error
  return false;
}

}  // namespace recurve
