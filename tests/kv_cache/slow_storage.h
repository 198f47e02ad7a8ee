#ifndef RECURVE_TESTS_KV_CACHE_SLOW_STORAGE_H_
#define RECURVE_TESTS_KV_CACHE_SLOW_STORAGE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Pages of a word for each token, slots of one word, blocks of either. As on a
// device, steps run at once and copies in order, but here as late as the
// contract of CacheStorage permits, or as CopySome says: a read that nothing
// orders behind a copy sees what was there before.
class SlowStorage : public CacheStorage {
 public:
  using Words = std::vector<uint64_t>;
  static constexpr uint64_t kPoison = ~uint64_t{0};

  explicit SlowStorage(const CacheSpec& spec)
      : pages_(spec.num_pages + 1, Words(kPageTokens)),
        slots_(spec.num_slots + 1),
        blocks_(spec.num_host_blocks + 1),
        page_copies_(spec.num_pages + 1),
        slot_copies_(spec.num_slots + 1) {}

  absl::Status ClearPage(int32_t page) override { return FillPage(page, 0); }
  absl::Status ClearSlot(int32_t slot) override { return FillSlot(slot, 0); }
  absl::Status PoisonPage(int32_t page) override {
    return FillPage(page, kPoison);
  }
  absl::Status PoisonSlot(int32_t slot) override {
    return FillSlot(slot, kPoison);
  }
  // A failure comes after half of the pages.
  absl::Status Save(const SavedMemory& memory) override {
    return Copy(memory, true);
  }
  absl::Status Restore(const SavedMemory& memory) override {
    pages_restored += static_cast<int64_t>(memory.pages.size());
    return Copy(memory, false);
  }
  bool Restored(int32_t slot) override { return slot_copies_[slot] <= done_; }

  // A step with the slot begins; it may then use the words.
  void BeginStep(int32_t slot) { Await(slot_copies_[slot]); }
  uint64_t& Cell(int32_t page, int64_t token) {
    return pages_.at(page).at(token);
  }
  uint64_t& Slot(int32_t slot) { return slots_.at(slot); }

  void CopySome(int64_t count) { Await(std::min(issued_, done_ + count)); }

  int64_t calls = 0;
  int64_t fail_at = -1;  // this call, counted from 0, fails
  int64_t pages_restored = 0;

 private:
  absl::Status Failure() {
    return calls++ == fail_at ? absl::ResourceExhaustedError("injected")
                              : absl::OkStatus();
  }
  absl::Status FillPage(int32_t page, uint64_t word) {
    Await(page_copies_.at(page));
    std::fill(pages_[page].begin(), pages_[page].end(), word);
    return Failure();
  }
  absl::Status FillSlot(int32_t slot, uint64_t word) {
    Await(slot_copies_.at(slot));
    slots_[slot] = word;
    return Failure();
  }

  absl::Status Copy(const SavedMemory& memory, bool out) {
    const absl::Status status = Failure();
    const size_t pages = memory.pages.size();
    if (out && status.ok()) CopySlot(memory, out);
    for (size_t i = 0; i < (status.ok() ? pages : pages / 2); ++i) {
      Words* page = &pages_.at(memory.pages[i]);
      Words* block = &blocks_.at(memory.blocks[i]);
      page_copies_[memory.pages[i]] =
          Issue([=] { (out ? *block : *page) = out ? *page : *block; });
    }
    if (!out && status.ok()) CopySlot(memory, out);
    return status;
  }
  // Also without a slot's bytes: steps wait for it.
  void CopySlot(const SavedMemory& memory, bool out) {
    uint64_t* slot = &slots_.at(memory.slot);
    std::vector<Words*> blocks;
    for (size_t i = memory.pages.size(); i < memory.blocks.size(); ++i) {
      blocks.push_back(&blocks_.at(memory.blocks[i]));
    }
    slot_copies_[memory.slot] = Issue([=] {
      for (Words* block : blocks) {
        if (out) {
          *block = {*slot};
        } else {
          *slot = block->size() == 1 ? block->front() : kPoison;
        }
      }
    });
  }

  int64_t Issue(std::function<void()> copy) {
    copies_.push_back(std::move(copy));
    return ++issued_;
  }
  void Await(int64_t copy) {
    for (; done_ < copy; ++done_) {
      copies_.front()();
      copies_.pop_front();
    }
  }

  std::vector<Words> pages_;  // [num_pages + 1]
  Words slots_;               // [num_slots + 1]
  std::vector<Words> blocks_;
  std::deque<std::function<void()>> copies_;
  int64_t issued_ = 0;
  int64_t done_ = 0;
  // The number of the last copy, by page and slot.
  std::vector<int64_t> page_copies_;
  std::vector<int64_t> slot_copies_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KV_CACHE_SLOW_STORAGE_H_
