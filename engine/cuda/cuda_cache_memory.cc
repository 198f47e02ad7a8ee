#include "engine/cuda/cuda_cache_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status_macros.h"

namespace recurve {

absl::Status CudaCacheMemory::Allocate(const CacheSpec& spec,
                                       cudaStream_t steps) {
  spec_ = spec;
  steps_ = steps;
  RECURVE_ASSIGN_OR_RETURN(
      pages_,
      CudaMemory::Allocate(
          kDevice, (int64_t{spec.num_pages} + 1) * spec.page_bytes,
          "KV cache; lower --kv-pages, --kv-pool-bytes or --max-num-seqs"));
  RECURVE_ASSIGN_OR_RETURN(
      slots_, CudaMemory::Allocate(
                  kDevice, (int64_t{spec.num_slots} + 1) * spec.slot_bytes,
                  "recurrent state; lower --max-num-seqs"));
  return absl::OkStatus();
}

absl::Status CudaCacheMemory::AllocateHost(int32_t num_blocks) {
  CacheSpec spec = spec_;
  spec.num_host_blocks = num_blocks;
  RECURVE_ASSIGN_OR_RETURN(
      swap_, CudaSwap::Create(steps_, spec, pages_.data(), slots_.data()));
  spec_ = spec;
  return absl::OkStatus();
}

absl::Status CudaCacheMemory::SetBytes(const CudaMemory& memory, int64_t number,
                                       int64_t bytes, int value) {
  if (bytes == 0) return absl::OkStatus();  // a model without such memory
  return CudaStatus(
      cudaMemsetAsync(memory.data() + number * bytes, value, bytes, steps_),
      "setting the memory of a sequence");
}

absl::Status CudaCacheMemory::SetPage(int32_t page, int value) {
  if (swap_ != nullptr) RECURVE_RETURN_IF_ERROR(swap_->AwaitPage(page));
  return SetBytes(pages_, page, spec_.page_bytes, value);
}

absl::Status CudaCacheMemory::AwaitSlot(int32_t slot) {
  return swap_ == nullptr ? absl::OkStatus() : swap_->AwaitSlot(slot);
}

absl::Status CudaCacheMemory::SetSlot(int32_t slot, int value) {
  RECURVE_RETURN_IF_ERROR(AwaitSlot(slot));
  return SetBytes(slots_, slot, spec_.slot_bytes, value);
}

absl::Status CudaCacheMemory::FillAtRandom(DType dtype) {
  const int64_t count = int64_t{8} << 20;
  // 16-bit values in [-1, 1), or float32 values with a moderate sum of squares.
  const auto fill = [&](const CudaMemory& memory, bool halves) -> absl::Status {
    if (memory.bytes() == 0) return absl::OkStatus();
    std::vector<uint32_t> words(count);
    uint64_t state = 1;
    for (uint32_t& word : words) {
      const auto next = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
      };
      if (!halves) {
        const float value = next();
        std::memcpy(&word, &value, sizeof(word));
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        const uint32_t bits = dtype == DType::kFloat16
                                  ? FloatToFloat16(next())
                                  : FloatToBFloat16(next());
        word = half == 0 ? bits : word | bits << 16;
      }
    }
    int64_t filled = std::min(count * static_cast<int64_t>(sizeof(uint32_t)),
                              memory.bytes());
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(memory.data(), words.data(), filled, cudaMemcpyHostToDevice),
        "filling the cache"));
    while (filled < memory.bytes()) {
      const int64_t more = std::min(filled, memory.bytes() - filled);
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpy(memory.data() + filled, memory.data(), more,
                                cudaMemcpyDeviceToDevice),
                     "filling the cache"));
      filled += more;
    }
    return absl::OkStatus();
  };
  RECURVE_RETURN_IF_ERROR(fill(pages_, dtype != DType::kFloat32));
  RECURVE_RETURN_IF_ERROR(fill(slots_, false));
  return CudaStatus(cudaDeviceSynchronize(), "filling the cache");
}

}  // namespace recurve
