// How CudaTpa shares out a step of decoding, and what it says of that.

#include <cstdint>
#include <vector>

#include "engine/models/tpa/tpa_cuda.h"
#include "gtest/gtest.h"
#include "kernels/tpa/decode/tpa_chunks.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/test_device.h"

namespace recurve {
namespace {

constexpr TpaShape kT6Xl = {78, 64, 64, 6, 2};
constexpr int64_t kPages = 256;  // of a sequence

class TpaSharesGpuTest : public OnTestDevice<> {};

// What the products of few rows are told of the attention in front of them. A
// wrong number would change no bits, and show nowhere else.
TEST_F(TpaSharesGpuTest, SaysWhichBlocksWork) {
  TpaDevice device = {};
  ASSERT_EQ(GetTpaDevice(&device), cudaSuccess);
  CudaOperationLimits limits;
  limits.device = device;
  limits.max_tokens = 64;
  limits.max_sequences = 4;
  limits.max_pages = kPages;
  limits.table_rows = 64;
  CudaTpa tpa(limits);
  TpaOperation::Params params;
  params.shape = kT6Xl;
  const TpaOperation layer(params);
  tpa.Add(layer);
  EXPECT_EQ(tpa.Variant({0}, 1) == static_cast<int64_t>(TpaContexts::kShort),
            TpaShortRows(kT6Xl, device) > 0);
  ASSERT_TRUE(tpa.Allocate().ok());
  CudaStepBuffer step;
  ASSERT_TRUE(step.Allocate(tpa.StepBytes()).ok());
  const std::vector<int32_t> pages(2 * kPages, 1);
  DeviceBuffer<int32_t> device_pages(pages);
  for (const int32_t length : {1, 129, 2048, 6000}) {
    for (const TpaContexts contexts :
         {TpaContexts::kAny, TpaContexts::kFew, TpaContexts::kShort}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, contexts "
                                      << static_cast<int>(contexts));
      const bool clusters = contexts == TpaContexts::kShort;
      if (clusters && (TpaShortRows(kT6Xl, device) == 0 ||
                       length > TpaChunkBegin(kTpaClusterChunks)))
        continue;
      std::vector<int32_t> lengths = {length, 0};
      const auto begin = [&](int rows) {
        step.Clear();
        CudaStep of;
        of.decode = true;
        of.rows = of.sequences = rows;
        of.page_stride = kPages;
        of.page_table = device_pages.data();
        return tpa.BeginDecode(of, {lengths.data(), pages.data(), nullptr},
                               static_cast<int64_t>(contexts), &step);
      };
      ASSERT_TRUE(begin(1).ok());
      ASSERT_TRUE(step.Copy(nullptr).ok());
      const WorkingBlocks working = tpa.Working(layer);
      ASSERT_NE(working.last, nullptr);
      int32_t last = -1;
      ASSERT_EQ(
          cudaMemcpy(&last, working.last, sizeof(last), cudaMemcpyDeviceToHost),
          cudaSuccess);
      const TpaDecodePlan plan = PlanTpaDecode(
          kT6Xl, TpaDecodeForm::kParallelBn, 1, 1, device, contexts);
      EXPECT_EQ(working.times, plan.head_blocks);
      EXPECT_EQ(working.clusters, clusters);
      // A block a chunk, as far as there are blocks; or a cluster.
      const int chunks = TpaChunkCount(length);
      if (clusters) {
        EXPECT_EQ(last, plan.cluster_blocks - 1);
      } else if (chunks <= plan.blocks) {
        EXPECT_EQ(last, chunks - 1);
      } else {
        EXPECT_LT(last, plan.blocks);
      }
      // For more rows only clusters are known, with tokens or without.
      if (clusters && TpaShortRows(kT6Xl, device) < 2) continue;
      for (const int32_t second : {length, 0}) {
        lengths[1] = second;
        ASSERT_TRUE(begin(2).ok());
        ASSERT_TRUE(step.Copy(nullptr).ok());
        const WorkingBlocks two = tpa.Working(layer);
        ASSERT_EQ(two.last != nullptr, clusters);
        if (!clusters) continue;
        ASSERT_EQ(
            cudaMemcpy(&last, two.last, sizeof(last), cudaMemcpyDeviceToHost),
            cudaSuccess);
        EXPECT_EQ(last, 2 * plan.cluster_blocks - 1);
        EXPECT_EQ(two.times, plan.head_blocks);
        EXPECT_TRUE(two.clusters);
      }
    }
  }
}

}  // namespace
}  // namespace recurve
