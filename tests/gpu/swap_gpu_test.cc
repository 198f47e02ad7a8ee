// Copies of sequences' memory to the host and back, against steps that write to
// the same pages before and after: whoever does not wait for the other shows.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "engine/cuda_memory.h"
#include "engine/cuda_swap.h"
#include "gtest/gtest.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr CacheSpec kSpec = {.num_pages = 96,
                             .num_slots = 4,
                             .page_bytes = 1 << 20,
                             .slot_bytes = (5 << 20) / 2,
                             .num_host_blocks = 128};

class SwapGpuTest : public OnTestDevice<> {
 protected:
  void SetUp() override {
    OnTestDevice::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaStreamCreateWithFlags(&steps_, cudaStreamNonBlocking),
              cudaSuccess);
    pages_ = *CudaMemory::Allocate(CudaMemory::Kind::kDevice,
                                   (kSpec.num_pages + 1) * kSpec.page_bytes,
                                   "pages");
    slots_ = *CudaMemory::Allocate(CudaMemory::Kind::kDevice,
                                   (kSpec.num_slots + 1) * kSpec.slot_bytes,
                                   "slots");
    busy_ = *CudaMemory::Allocate(CudaMemory::Kind::kDevice, kBusy, "work");
    auto swap = CudaSwap::Create(steps_, kSpec, pages_.data(), slots_.data());
    ASSERT_TRUE(swap.ok()) << swap.status();
    swap_ = *std::move(swap);
  }
  void TearDown() override {
    swap_.reset();
    if (steps_ != nullptr) cudaStreamDestroy(steps_);
  }

  // Something that keeps the steps' stream busy for about a millisecond.
  void Work() {
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(cudaMemsetAsync(busy_.data(), i, kBusy, steps_), cudaSuccess);
  }
  // As a step does it, behind Await.
  void FillPage(int32_t page, int value) {
    ASSERT_TRUE(swap_->AwaitPage(page).ok());
    ASSERT_EQ(cudaMemsetAsync(pages_.data() + page * kSpec.page_bytes, value,
                              kSpec.page_bytes, steps_),
              cudaSuccess);
  }
  void FillSlot(int32_t slot, int value) {
    ASSERT_TRUE(swap_->AwaitSlot(slot).ok());
    ASSERT_EQ(cudaMemsetAsync(slots_.data() + slot * kSpec.slot_bytes, value,
                              kSpec.slot_bytes, steps_),
              cudaSuccess);
  }
  // Whether every byte on the device, as the next step would see it, is this.
  bool Holds(const char* data, int64_t bytes, int value) {
    std::vector<uint8_t> host(bytes);
    EXPECT_EQ(cudaMemcpyAsync(host.data(), data, bytes, cudaMemcpyDeviceToHost,
                              steps_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
    for (uint8_t byte : host) {
      if (byte != value) return false;
    }
    return true;
  }
  bool PageHolds(int32_t page, int value) {
    return Holds(pages_.data() + page * kSpec.page_bytes, kSpec.page_bytes,
                 value);
  }
  bool SlotHolds(int32_t slot, int value) {
    return Holds(slots_.data() + slot * kSpec.slot_bytes, kSpec.slot_bytes,
                 value);
  }

  static constexpr int64_t kBusy = int64_t{1} << 30;
  cudaStream_t steps_ = nullptr;
  CudaMemory pages_, slots_, busy_;
  std::unique_ptr<CudaSwap> swap_;
};

TEST_F(SwapGpuTest, StepsAndCopiesWaitForEachOther) {
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    std::vector<int32_t> pages, others, blocks;
    for (int32_t i = 1; i <= 40; ++i) {
      pages.push_back(i + round);
      others.push_back(90 - i);
    }
    for (int32_t i = 0; i < 43; ++i) blocks.push_back(128 - 2 * i);
    const int value = 10 + round;
    Work();
    for (int32_t page : pages) FillPage(page, value);
    FillSlot(1, value);
    // Saved as the steps left it, and then overwritten at once.
    ASSERT_TRUE(swap_->Save({1, pages, blocks}).ok());
    for (int32_t page : pages) FillPage(page, 1);
    FillSlot(1, 1);
    Work();
    for (int32_t page : others) FillPage(page, 2);
    FillSlot(2, 2);
    // Restored over what the steps wrote, elsewhere; the blocks are reused at
    // once by another.
    ASSERT_TRUE(swap_->Restore({2, others, blocks}).ok());
    ASSERT_TRUE(swap_->Save({1, pages, blocks}).ok());
    ASSERT_TRUE(swap_->AwaitSlot(2).ok());
    for (int32_t page : others) EXPECT_TRUE(PageHolds(page, value)) << page;
    EXPECT_TRUE(SlotHolds(2, value));
    // One that ends while it is restored: its pages are cleared behind that.
    ASSERT_TRUE(swap_->Restore({3, others, blocks}).ok());
    for (int32_t page : others) FillPage(page, 0);
    FillSlot(3, 0);
    for (int32_t page : others) EXPECT_TRUE(PageHolds(page, 0)) << page;
    EXPECT_TRUE(SlotHolds(3, 0));
    EXPECT_TRUE(swap_->Done(3));
  }
}

TEST_F(SwapGpuTest, CopiesRunBesideSteps) {
  std::vector<int32_t> pages, blocks;
  for (int32_t i = 1; i <= 96; ++i) pages.push_back(i);
  for (int32_t i = 1; i <= 99; ++i) blocks.push_back(i);
  const double bytes =
      96.0 * kSpec.page_bytes + static_cast<double>(kSpec.slot_bytes);
  const auto seconds = [&](bool save, bool steps) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto start = std::chrono::steady_clock::now();
    if (save) {
      EXPECT_TRUE(swap_->Save({1, pages, blocks}).ok());
    } else {
      EXPECT_TRUE(swap_->Restore({1, pages, blocks}).ok());
    }
    const double queued =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    const bool done = swap_->Done(1);
    if (steps) Work();
    if (steps) {
      EXPECT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
      std::printf("  steps done with the copy %s\n",
                  swap_->Done(1) ? "done" : "under way");
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const double all =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    std::printf("%s%s: %.1f GB/s (%.2f ms; %.2f to queue, %s then)\n",
                save ? "save" : "restore", steps ? " beside steps" : "",
                bytes * 1e-9 / all, all * 1e3, queued * 1e3,
                done ? "done" : "under way");
  };
  for (const bool save : {true, false, true, false}) seconds(save, false);
  for (const bool save : {true, false}) seconds(save, true);
}

}  // namespace
}  // namespace recurve
