#include "server/heap_trimmer.h"

#include <malloc.h>

#include "server/telemetry/process_metrics.h"

namespace recurve {
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
