// Copies of sequences' memory to the host and back, concurrent with steps that
// write to the same pages before and after: a missing wait is detected.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_swap.h"
#include "gtest/gtest.h"
#include "tests/testing/test_device.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

// For what takes milliseconds.
constexpr std::chrono::seconds kPatience(30);

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

  // On a stream: until the test sets the flag.
  static void WaitForFlag(void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
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

// More saves than the device has memory for, each behind another step.
TEST_F(SwapGpuTest, EverySavedSlotIsWhatTheStepBeforeLeft) {
  constexpr int32_t kSaves = 40;
  static_assert(kSaves > 2 * CudaSwap::NumStagedSlots(kSpec.num_slots));
  const auto blocks = [](int32_t save) {
    return std::vector<int32_t>{3 * save + 3, 3 * save + 1, 3 * save + 2};
  };
  FillSlot(1, 100);
  for (int32_t save = 0; save < kSaves; ++save) {
    ASSERT_TRUE(swap_->Save({1, {}, blocks(save)}).ok());
    if (save % 8 == 0) Work();
    FillSlot(1, 101 + save);
  }
  for (int32_t save = 0; save < kSaves; ++save) {
    ASSERT_TRUE(swap_->Restore({2, {}, blocks(save)}).ok());
    // The next one is saved again from where this one is restored.
    ASSERT_TRUE(swap_->Save({2, {}, blocks(save)}).ok());
    ASSERT_TRUE(swap_->Restore({3, {}, blocks(save)}).ok());
    ASSERT_TRUE(swap_->AwaitSlot(3).ok());
    EXPECT_TRUE(SlotHolds(3, 100 + save)) << save;
  }
}

// What is put on the steps' stream after a copy does not hold it up.
TEST_F(SwapGpuTest, CopiesRunBesideSteps) {
  std::vector<int32_t> pages, blocks;
  for (int32_t i = 1; i <= 96; ++i) pages.push_back(i);
  for (int32_t i = 1; i <= 99; ++i) blocks.push_back(i);
  for (const bool save : {true, false}) {
    SCOPED_TRACE(save ? "save and restore" : "restore");
    Work();
    if (save) {
      ASSERT_TRUE(swap_->Save({2, pages, blocks}).ok());
    }
    ASSERT_TRUE(swap_->Restore({1, pages, blocks}).ok());
    // A step that takes as long as the test wants.
    std::atomic<bool> ends = false;
    ASSERT_EQ(cudaLaunchHostFunc(steps_, WaitForFlag, &ends), cudaSuccess);
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    bool done = false;
    while (!done && std::chrono::steady_clock::now() < give_up)
      done = swap_->Done(1);
    EXPECT_EQ(cudaStreamQuery(steps_), cudaErrorNotReady);
    ends = true;
    EXPECT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
    EXPECT_TRUE(done);
  }
}

// A sequence that shares the pages of one that is being restored waits for its
// own slot only, and that is enough; also when nothing of it is copied.
TEST_F(SwapGpuTest, ASlotIsRestoredAfterPagesOfEarlierRestores) {
  std::vector<int32_t> pages, blocks;
  for (int32_t i = 1; i <= 90; ++i) pages.push_back(i);
  for (int32_t i = 1; i <= 93; ++i) blocks.push_back(i);
  for (const int64_t slot_bytes : {kSpec.slot_bytes, int64_t{0}}) {
    SCOPED_TRACE(slot_bytes);
    CacheSpec spec = kSpec;
    spec.slot_bytes = slot_bytes;
    auto swap = CudaSwap::Create(steps_, spec, pages_.data(), slots_.data());
    ASSERT_TRUE(swap.ok()) << swap.status();
    swap_ = *std::move(swap);
    blocks.resize(slot_bytes == 0 ? 90 : 93);
    const std::vector<int32_t> state(blocks.begin() + 90, blocks.end());
    for (int32_t page : pages) FillPage(page, 7);
    FillSlot(1, 7);
    ASSERT_TRUE(swap_->Save({1, pages, blocks}).ok());
    for (int32_t page : pages) FillPage(page, 1);
    ASSERT_TRUE(swap_->Restore({2, pages, blocks}).ok());
    ASSERT_TRUE(swap_->Restore({3, {}, state}).ok());
    ASSERT_TRUE(swap_->AwaitSlot(3).ok());
    EXPECT_TRUE(PageHolds(90, 7));
    if (slot_bytes != 0) {
      EXPECT_TRUE(SlotHolds(3, 7));
    }
    EXPECT_TRUE(swap_->Done(3));
  }
}

// A new owner of the slot of a sequence being saved does not wait for its
// pages: these take longer than the time between two events of the steps'
// stream, one after the wait for the slot and one after that for the last page.
TEST_F(SwapGpuTest, ASlotIsFreeBeforeThePagesThatAreSavedWithIt) {
  std::vector<int32_t> pages, blocks;
  for (int32_t i = 1; i <= 96; ++i) pages.push_back(i);
  for (int32_t i = 1; i <= 99; ++i) blocks.push_back(i);
  cudaEvent_t slot, page;
  ASSERT_EQ(cudaEventCreate(&slot), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&page), cudaSuccess);
  // Nothing begins before all of it is there.
  std::atomic<bool> begins = false;
  ASSERT_EQ(cudaLaunchHostFunc(steps_, WaitForFlag, &begins), cudaSuccess);
  ASSERT_TRUE(swap_->Save({1, pages, blocks}).ok());
  ASSERT_TRUE(swap_->AwaitSlot(1).ok());
  ASSERT_EQ(cudaEventRecord(slot, steps_), cudaSuccess);
  ASSERT_TRUE(swap_->AwaitPage(96).ok());
  ASSERT_EQ(cudaEventRecord(page, steps_), cudaSuccess);
  begins = true;
  ASSERT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
  float ms = 0;
  ASSERT_EQ(cudaEventElapsedTime(&ms, slot, page), cudaSuccess);
  // 96 MiB: at 200 GB/s half a millisecond.
  EXPECT_GT(ms, 0.2f);
  cudaEventDestroy(slot);
  cudaEventDestroy(page);
}

}  // namespace
}  // namespace recurve
