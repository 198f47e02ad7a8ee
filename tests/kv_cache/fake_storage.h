#ifndef RECURVE_TESTS_KV_CACHE_FAKE_STORAGE_H_
#define RECURVE_TESTS_KV_CACHE_FAKE_STORAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Storage without bytes: records the last fill of each page and slot, and fails
// on demand.
class FakeStorage : public CacheStorage {
 public:
  enum class Fill { kUsed, kZero, kNan };

  explicit FakeStorage(const CacheSpec& spec)
      : pages(spec.num_pages + 1, Fill::kUsed),
        slots(spec.num_slots + 1, Fill::kUsed) {}

  absl::Status ClearPage(int32_t page) override {
    return Set(pages, page, Fill::kZero, absl::StrCat("clear page ", page));
  }
  absl::Status ClearSlot(int32_t slot) override {
    return Set(slots, slot, Fill::kZero, absl::StrCat("clear slot ", slot));
  }
  absl::Status PoisonPage(int32_t page) override {
    return Set(pages, page, Fill::kNan, absl::StrCat("poison page ", page));
  }
  absl::Status PoisonSlot(int32_t slot) override {
    return Set(slots, slot, Fill::kNan, absl::StrCat("poison slot ", slot));
  }

  // The call with this index, counted from 0, fails; -1: none.
  int64_t fail_at = -1;
  // Its error. ResourceExhausted, to show that the manager does not report it
  // as an exhausted pool.
  absl::Status failure = absl::ResourceExhaustedError("injected");

  int64_t calls = 0;
  std::vector<std::string> log;
  std::vector<Fill> pages;  // [num_pages + 1]
  std::vector<Fill> slots;  // [num_slots + 1]

 private:
  absl::Status Set(std::vector<Fill>& fills, int32_t id, Fill fill,
                   const std::string& what) {
    if (calls++ == fail_at) return failure;
    log.push_back(what);
    fills.at(id) = fill;  // throws, and so fails the test, out of range
    return absl::OkStatus();
  }
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KV_CACHE_FAKE_STORAGE_H_
