#ifndef RECURVE_KV_CACHE_CACHE_SPEC_H_
#define RECURVE_KV_CACHE_CACHE_SPEC_H_

// How much sequence state a server holds, in units of hand-over.

#include <cstdint>

namespace recurve {

// Tokens in one page, which holds their TPA factors for all layers.
inline constexpr int kPageTokens = 64;

// Page 0 and slot 0 are the sinks that padding rows write to. They are not
// included in these counts and never handed out: usable ids are 1..num.
struct CacheSpec {
  int32_t num_pages = 0;
  int32_t num_slots = 0;
  // Bytes of one page, all layers together; 0 for a model without TPA layers,
  // whose sequences then need no pages.
  int64_t page_bytes = 0;
  // Bytes of one slot, all layers together; 0 for a model without recurrent
  // layers. Its sequences still hold a slot, which counts their tokens.
  int64_t slot_bytes = 0;
  // Blocks of host memory for preempted sequences, also numbered from 1;
  // HostBlockBytes each.
  int32_t num_host_blocks = 0;
};

// Pages that a sequence of `tokens` tokens occupies. REQUIRES: tokens >= 0.
constexpr int64_t PagesFor(int64_t tokens, const CacheSpec& spec) {
  if (spec.page_bytes == 0) return 0;
  return tokens / kPageTokens + (tokens % kPageTokens != 0 ? 1 : 0);
}

// A block of host memory holds one page, or one slot where there are no pages.
constexpr int64_t HostBlockBytes(const CacheSpec& spec) {
  return spec.page_bytes != 0 ? spec.page_bytes : spec.slot_bytes;
}

// Blocks that one slot takes.
constexpr int64_t HostBlocksOfSlot(const CacheSpec& spec) {
  const int64_t block = HostBlockBytes(spec);
  return spec.slot_bytes == 0 ? 0 : (spec.slot_bytes + block - 1) / block;
}

// Blocks that a sequence of `tokens` tokens takes. REQUIRES: tokens >= 0.
constexpr int64_t HostBlocksFor(int64_t tokens, const CacheSpec& spec) {
  return PagesFor(tokens, spec) + HostBlocksOfSlot(spec);
}

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_CACHE_SPEC_H_
