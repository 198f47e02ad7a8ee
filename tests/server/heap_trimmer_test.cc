#include "server/heap_trimmer.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/telemetry/process_metrics.h"

namespace recurve {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif

// Blocks too small to be mappings of their own, and of every hundred one that
// stays, so that the heap does not shrink at its end.
TEST(HeapTrimmerTest, GivesFreedMemoryBack) {
  if (kOwnAllocator) GTEST_SKIP() << "the sanitizer has its own allocator";
  constexpr int64_t kBlock = 16 << 10;
  constexpr int64_t kBlocks = 4 * HeapTrimmer::kLeastBytes / kBlock;
  HeapTrimmer trimmer;
  trimmer.TrimIfWorthwhile();
  std::vector<std::unique_ptr<std::vector<char>>> blocks;
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<std::vector<char>>(kBlock, 'x'));
  }
  const int64_t full = ResidentBytes();
  EXPECT_FALSE(trimmer.TrimIfWorthwhile()) << "nothing is free";
  for (int64_t i = 0; i < kBlocks; ++i) {
    if (i % 100 != 99) blocks[i].reset();
  }
  EXPECT_TRUE(trimmer.TrimIfWorthwhile());
  EXPECT_LT(ResidentBytes(), full - 3 * HeapTrimmer::kLeastBytes);
  EXPECT_FALSE(trimmer.TrimIfWorthwhile()) << "it was just done";
}

}  // namespace
}  // namespace recurve
