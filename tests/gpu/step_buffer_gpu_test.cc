// Two steps' numbers under way at once: each step finds its own.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <thread>
#include <vector>

#include "absl/types/span.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "gtest/gtest.h"
#include "tests/testing/test_device.h"

namespace recurve {
namespace {

class StepBufferGpuTest : public OnTestDevice<> {};

void CUDART_CB AwaitFlag(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load())
    std::this_thread::yield();
}

// Lets all that waits go on, whatever becomes of the test.
struct Release {
  absl::Span<std::atomic<bool>> go;
  cudaStream_t stream;
  ~Release() {
    for (std::atomic<bool>& flag : go) flag = true;
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
};

TEST_F(StepBufferGpuTest, AStepFindsItsOwnNumbers) {
  constexpr int64_t kMost = 300'000;
  CudaStepBuffer step;
  ASSERT_TRUE(step.Allocate(4 * kMost + 1000).ok());
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  const int64_t counts[] = {kMost, 1, 1000, 0, 77, 4096, 3, kMost, kMost - 1};
  constexpr int kSteps = std::size(counts);
  // Page-locked: copies to other memory would hold this thread.
  auto read_memory = CudaMemory::Allocate(CudaMemory::Kind::kHost,
                                          4 * kSteps * kMost + kSteps, "test");
  ASSERT_TRUE(read_memory.ok());
  auto* const read = read_memory->as<int32_t>();
  auto* const flags = reinterpret_cast<uint8_t*>(read + kSteps * kMost);
  std::atomic<bool> go[kSteps] = {};
  const Release release = {absl::MakeSpan(go), stream};
  cudaEvent_t dones[kSteps];
  const int32_t* numbers = nullptr;
  const uint8_t* flag = nullptr;
  // A kernel is loaded where it is first launched, which waits for what runs.
  step.Clear();
  *step.Add(1, &numbers, 128) = 0;
  ASSERT_TRUE(step.Copy(stream).ok());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int i = 0; i < kSteps; ++i) {
    if (i >= 2) {  // the last but one is done
      ASSERT_EQ(cudaEventSynchronize(dones[i - 2]), cudaSuccess);
    }
    step.Clear();
    const int32_t* const before = numbers;
    int32_t* const to = step.Add(counts[i], &numbers, 128);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(numbers) % 128, 0U);
    EXPECT_EQ(numbers, before);
    for (int64_t n = 0; n < counts[i]; ++n)
      to[n] = static_cast<int32_t>(1'000'000 * i + n);
    // Behind an odd number of bytes: what is copied is rounded up.
    *step.Add(1, &flag) = static_cast<uint8_t>(i + 1);
    // The step begins when the next one's numbers are asked for, no earlier.
    ASSERT_EQ(cudaLaunchHostFunc(stream, AwaitFlag, &go[i]), cudaSuccess);
    ASSERT_TRUE(step.Copy(stream).ok());
    if (i > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      go[i - 1] = true;
    }
    ASSERT_EQ(cudaMemcpyAsync(read + i * kMost, numbers, 4 * counts[i],
                              cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    ASSERT_EQ(
        cudaMemcpyAsync(&flags[i], flag, 1, cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&dones[i]), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(dones[i], stream), cudaSuccess);
  }
  go[kSteps - 1] = true;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_EQ(flags[i], i + 1);
    for (int64_t n = 0; n < counts[i]; ++n)
      ASSERT_EQ(read[i * kMost + n], 1'000'000 * i + n) << i;
    EXPECT_EQ(cudaEventDestroy(dones[i]), cudaSuccess);
  }
}

}  // namespace
}  // namespace recurve
