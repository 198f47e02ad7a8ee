#ifndef RECURVE_ENGINE_PROGRAM_ARITHMETIC_H_
#define RECURVE_ENGINE_PROGRAM_ARITHMETIC_H_

#include <cstdint>

namespace recurve {

// The version of the arithmetic of models: raised with every change of bits.
// tests/golden/digests.txt shows most; not an order of sums that only larger
// matrices have (decode_matmul_order.h). States that another version computed
// are refused.
inline constexpr uint32_t kArithmeticVersion = 2;

// The version of what pages and slots hold, and where. Raised with every
// change.
inline constexpr uint32_t kLayoutVersion = 1;

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_ARITHMETIC_H_
