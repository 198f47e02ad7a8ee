#ifndef RECURVE_ENGINE_SERVING_CACHE_USE_H_
#define RECURVE_ENGINE_SERVING_CACHE_USE_H_

#include <cstdint>

namespace recurve {

// Why a prompt's tokens were not, or not all, in the prefix cache.
enum class CacheMiss {
  kNone,      // all were that could be
  kUnknown,   // no prompt that begins alike was seen
  kDiverged,  // the prompt parts from those seen, after `diverged_at` tokens
  kEvicted,   // a snapshot had to make room
  kShort,     // the prompt ends before the first place for a snapshot
  kDisabled,  // by the server; or the model computes prompts as a whole; or the
              // logits of all tokens, or log-probabilities of the prompt, are
              // wanted
};
inline constexpr int kNumCacheMisses = 6;

// What the prefix cache did for the first command of a sequence.
struct CacheUse {
  int64_t cached_tokens = 0;   // taken from a snapshot
  int64_t written_tokens = 0;  // in the longest snapshot that was taken of it
  CacheMiss miss = CacheMiss::kDisabled;
  int64_t diverged_at = 0;
  bool approximate = false;  // the cached tokens were computed otherwise
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_CACHE_USE_H_
