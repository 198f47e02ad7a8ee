#include "base/huge_pages.h"

#include <sys/mman.h>

#include <new>

namespace recurve {
namespace {

constexpr size_t kHugePage = 2 << 20;

}  // namespace

void* AllocateHugePages(size_t bytes) {
  if (bytes < kHugePage) return ::operator new(bytes);
  void* const memory = ::operator new (bytes, std::align_val_t{kHugePage});
  // Only whole ones, so that no more memory is taken. It is advice: a system
  // without such pages is slower, not wrong.
  madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void FreeHugePages(void* memory, size_t bytes) {
  if (bytes < kHugePage) return ::operator delete(memory);
  ::operator delete (memory, std::align_val_t{kHugePage});
}

}  // namespace recurve
