// Sequences in the scheduler's view, for its tests.
#ifndef RECURVE_TESTS_ENGINE_SCHEDULER_TESTING_H_
#define RECURVE_TESTS_ENGINE_SCHEDULER_TESTING_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "engine/serving/scheduler.h"
#include "gtest/gtest.h"
#include "tests/testing/plan_checker.h"

namespace recurve {

inline bool operator==(const StepPlan::Entry& a, const StepPlan::Entry& b) {
  return a.id == b.id && a.num_tokens == b.num_tokens;
}
inline void PrintTo(const StepPlan::Entry& entry, std::ostream* os) {
  *os << "{" << entry.id << ", " << entry.num_tokens << " tokens}";
}

namespace scheduler_testing {

using Entry = StepPlan::Entry;

inline constexpr SchedulerLimits kLimits = {
    /*max_batched_tokens=*/100, /*max_chunk_tokens=*/40, /*page_tokens=*/10};

// Arrived in the order of ids; holds the pages of its computed tokens.
inline SequenceView Decoding(uint64_t id, int64_t tokens,
                             int32_t priority = 0) {
  return {id, priority, id, tokens, tokens - 1, (tokens + 8) / 10, true};
}
// A prompt without computed tokens; holds pages for all of it.
inline SequenceView Prefilling(uint64_t id, int64_t tokens,
                               int32_t priority = 0) {
  return {id, priority, id, tokens, 0, (tokens + 9) / 10, true};
}
inline SequenceView Waiting(uint64_t id, int64_t tokens, int32_t priority = 0) {
  return {id, priority, id, tokens, 0, 0, true};
}
inline SequenceView Idle(SequenceView view) {
  view.has_work = false;
  return view;
}

// Plans, and checks the invariants of every plan.
inline StepPlan Plan(const SchedulerLimits& limits, int64_t free_pages,
                     int64_t free_slots,
                     const std::vector<SequenceView>& resident,
                     const std::vector<SequenceView>& waiting) {
  StepPlan plan = PlanStep(limits, free_pages, free_slots, resident, waiting);
  const absl::Status status =
      CheckPlan(limits, free_pages, free_slots, resident, waiting, plan);
  EXPECT_TRUE(status.ok()) << status;
  return plan;
}

// Saved in host memory: waiting, or resident with its copy in progress.
inline SequenceView FromHost(SequenceView view, int64_t computed) {
  view.num_computed = computed;
  view.from_host = true;
  return view;
}

}  // namespace scheduler_testing
}  // namespace recurve

#endif  // RECURVE_TESTS_ENGINE_SCHEDULER_TESTING_H_
