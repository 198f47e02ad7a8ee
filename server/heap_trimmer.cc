#include "server/heap_trimmer.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace recurve {
namespace {

// 0 where it cannot be read: then nothing is trimmed.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

bool HeapTrimmer::TrimIfWorthwhile() {
#ifdef __GLIBC__
  if (ResidentBytes() < resident_bytes_ + kLeastBytes) return false;
  if (static_cast<int64_t>(mallinfo2().fordblks) < kLeastBytes) return false;
  malloc_trim(0);
  resident_bytes_ = ResidentBytes();
  return true;
#else
  return false;
#endif
}

}  // namespace recurve
