#ifndef RECURVE_BASE_HUGE_PAGES_H_
#define RECURVE_BASE_HUGE_PAGES_H_

#include <cstddef>
#include <vector>

namespace recurve {

// Memory that the system is asked to hold in pages of 2 MiB, as far as whole
// ones fit. Weights are read once a step: with pages of 4 KiB each is looked up
// again after a few hundred cycles, and no prefetch goes beyond it. Throws
// std::bad_alloc, as new does.
void* AllocateHugePages(size_t bytes);
void FreeHugePages(void* memory, size_t bytes);  // `bytes` as allocated

// For standard containers.
template <typename T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): containers convert them
  HugePageAllocator(const HugePageAllocator<U>& /*other*/) {}

  T* allocate(size_t count) {
    return static_cast<T*>(AllocateHugePages(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t count) {
    FreeHugePages(memory, count * sizeof(T));
  }
  friend bool operator==(HugePageAllocator /*a*/, HugePageAllocator /*b*/) {
    return true;
  }
};

template <typename T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace recurve

#endif  // RECURVE_BASE_HUGE_PAGES_H_
