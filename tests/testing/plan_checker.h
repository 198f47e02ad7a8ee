#ifndef RECURVE_TESTS_TESTING_PLAN_CHECKER_H_
#define RECURVE_TESTS_TESTING_PLAN_CHECKER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/serving/scheduler.h"

namespace recurve {

// The rules for every plan, independent of the policy's details:
//  - ids are known and used once; nothing preempted or idle runs;
//  - tokens stay within the step, the chunk and the sequence's remainder, and
//    end at a multiple, after a whole prompt, or with the last; a whole prompt
//    is computed in one step;
//  - pages and slots suffice when the plan is applied in order;
//  - a victim is idle, or ranks below a resident that takes pages, or yields to
//    an admitted sequence: of higher priority, or of another flow and with an
//    earlier turn; and some sequence gains;
//  - admitted sequences are the first of the waiting ones in rank, none ranks
//    below one preempted in this step, and the next could not be admitted; only
//    sequences that fit a step pass waiting ones, except one that lacks pages
//    and was passed too often;
//  - long prompts have no more than their half while prompts that fit a step,
//    and have room in memory, lack tokens;
//  - a resident with a token to decode runs, or lacks a page;
//  - the highest in rank of the residents runs, or yields to an admission;
//    residents and admitted sequences that wait for a copy from the host run
//    only if nothing else does, and then one of them;
//  - if there is work, something runs.
// FailedPrecondition with the rule and the numbers.
//
// REQUIRES: every resident holds pages for its computed tokens and, if the
// model needs pages, at least one.
absl::Status CheckPlan(const SchedulerLimits& limits, int64_t free_pages,
                       int64_t free_slots,
                       absl::Span<const SequenceView> resident,
                       absl::Span<const SequenceView> waiting,
                       const StepPlan& plan);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_PLAN_CHECKER_H_
