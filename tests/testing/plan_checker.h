#ifndef RECURVE_TESTS_TESTING_PLAN_CHECKER_H_
#define RECURVE_TESTS_TESTING_PLAN_CHECKER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/serving/scheduler.h"

namespace recurve {

// What every plan must satisfy, whatever the policy's taste:
//  - ids are known and used once; nothing preempted or idle runs;
//  - tokens stay within the step, the chunk and what the sequence has left, and
//    end at a multiple, behind what is whole, or with the last; what is whole
//    is computed in one step;
//  - pages and slots suffice when the plan is applied in order;
//  - a victim is idle, or ranks below a resident that takes pages, or yields to
//    a sequence that is admitted: of higher priority, or of another flow and
//    with an earlier turn; and somebody gains;
//  - those admitted are the first of the waiting in rank, none ranks below one
//    preempted in this step, and the next could not be admitted; only what fits
//    a step passes what waits, and not what lacks pages and was passed too
//    often;
//  - long prompts have no more than their half while prompts that fit a step,
//    and have room in memory, lack tokens;
//  - a resident with a token to decode has it, or no page can be had;
//  - the highest in rank of the residents runs, or yields to an admission;
//    residents and admitted ones that wait for a copy from the host run only
//    if nothing else does, and then one of them;
//  - where there is work, something runs.
// FailedPrecondition with the rule and the numbers.
//
// REQUIRES: every resident holds pages for what it has computed and, where the
// model needs pages, at least one.
absl::Status CheckPlan(const SchedulerLimits& limits, int64_t free_pages,
                       int64_t free_slots,
                       absl::Span<const SequenceView> resident,
                       absl::Span<const SequenceView> waiting,
                       const StepPlan& plan);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_PLAN_CHECKER_H_
