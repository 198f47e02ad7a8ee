#ifndef RECURVE_BASE_THREAD_SANITIZER_H_
#define RECURVE_BASE_THREAD_SANITIZER_H_

#include <cstddef>

// ThreadSanitizer instruments every load. In the matrix products, which do
// nearly all loads of a step, that makes a step a hundred times slower. A
// function with RECURVE_UNSEEN_BY_TSAN is not instrumented; its caller instead
// declares each range that it reads or writes. In other builds both are no-ops.

#if defined(__SANITIZE_THREAD__)
#define RECURVE_TSAN 1
#elif defined(__has_feature)
#define RECURVE_TSAN __has_feature(thread_sanitizer)
#else
#define RECURVE_TSAN 0
#endif

#if RECURVE_TSAN
#define RECURVE_UNSEEN_BY_TSAN __attribute__((no_sanitize("thread")))
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);   // NOLINT
void __tsan_write_range(void* address, unsigned long bytes);  // NOLINT
}
#else
#define RECURVE_UNSEEN_BY_TSAN
#endif

namespace recurve {

inline void SayRead([[maybe_unused]] const void* address,
                    [[maybe_unused]] size_t bytes) {
#if RECURVE_TSAN
  __tsan_read_range(const_cast<void*>(address), bytes);
#endif
}

inline void SayWritten([[maybe_unused]] void* address,
                       [[maybe_unused]] size_t bytes) {
#if RECURVE_TSAN
  __tsan_write_range(address, bytes);
#endif
}

}  // namespace recurve

#endif  // RECURVE_BASE_THREAD_SANITIZER_H_
