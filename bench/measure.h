// Medians, and times of copies: on the device, and of saved sequences over the
// bus.
#ifndef RECURVE_BENCH_MEASURE_H_
#define RECURVE_BENCH_MEASURE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

double Median(std::vector<double> values);
// The mean over those that have any values.
double MeanOfMedians(const std::vector<std::vector<double>>& all);

// Bytes a second of a large copy on the device, read and written.
double CopyBytesPerSecond();

// Copies of a sequence's memory. Medians, from the call until all bytes are
// there, with nothing else on the device or the bus.
struct SavedTimes {
  int64_t bytes = 0;
  double save_ms = 0;
  double restore_ms = 0;
  double copy_ms = 0;  // the floor: as many bytes to the device in one copy
};

// Saves and restores slot 1 and the first pages of `storage`, as a sequence of
// `tokens` tokens. REQUIRES: `spec` is of `storage`, on a GPU, and has pages
// and blocks for it, and a slot.
absl::StatusOr<SavedTimes> MeasureSaved(CacheStorage& storage,
                                        const CacheSpec& spec, int64_t tokens,
                                        int repeats);

}  // namespace recurve

#endif  // RECURVE_BENCH_MEASURE_H_
