#include "kernels/tpa/append/expand_factors.h"

#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

TEST(ExpandFactorsTest, MatchesTheDefinition) {
  ThreadPool pool(2);
  constexpr int64_t kRows = 5;
  for (const int64_t rank : {1, 2, 3, 6}) {
    for (const int64_t heads : {1, 5}) {
      for (const int64_t dim : {1, 17, 64}) {
        const int64_t stride = rank * (heads + dim) + 3;
        const int64_t out_stride = heads * dim + 2;
        const std::vector<float> in = RandomTensor(rank, kRows * stride);
        std::vector<float> out(kRows * out_stride, kCanary);
        ExpandFactors({in.data(), in.data() + rank * heads, stride, out.data(),
                       out_stride, kRows, rank, heads, dim},
                      pool);
        for (int64_t t = 0; t < kRows; ++t) {
          const float* a = in.data() + t * stride;
          const float* b = a + rank * heads;
          for (int64_t i = 0; i < heads * dim; ++i) {
            double want = 0;
            for (int64_t r = 0; r < rank; ++r) {
              want += static_cast<double>(a[r * heads + i / dim]) *
                      static_cast<double>(b[r * dim + i % dim]);
            }
            want /= static_cast<double>(rank);
            EXPECT_NEAR(out[t * out_stride + i], want, 1e-6);
          }
          EXPECT_EQ(out[t * out_stride + heads * dim], kCanary);
        }
      }
    }
  }
}

}  // namespace
}  // namespace recurve
