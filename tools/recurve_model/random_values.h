#ifndef RECURVE_TOOLS_RECURVE_MODEL_RANDOM_VALUES_H_
#define RECURVE_TOOLS_RECURVE_MODEL_RANDOM_VALUES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace recurve {

// The values of one random tensor. Each is a pure function of seed, the
// tensor's name and the element's index, and only exact arithmetic goes before
// one final rounding: every machine, with any number of threads, writes the
// same bytes.
class RandomValues {
 public:
  // Approximately normal: a sum of eight uniform numbers, so that no value is
  // further than 4.9 standard deviations from the mean.
  RandomValues(uint64_t seed, absl::string_view name, double mean,
               double deviation);

  // Writes elements [first, first + count), in their stored form, to
  // `out`[count · SizeOf(dtype)]. `dtype` is not kInt32.
  void Fill(DType dtype, int64_t first, int64_t count, char* out) const;

 private:
  float Value(int64_t index) const;

  uint64_t seed_;
  uint64_t stream_;
  double mean_;
  double scale_;
};

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_RANDOM_VALUES_H_
