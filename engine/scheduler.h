#ifndef RECURVE_ENGINE_SCHEDULER_H_
#define RECURVE_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace recurve {

// What runs in the next step: a pure function of sequences and limits. It holds
// nothing and touches nothing, so that a policy can be read, tested and
// replaced by itself.
//
// The policy: continuous batching, first come first served within a priority.
// Sequences are ranked by priority (higher first), then arrival (earlier
// first).
//  1. Resident sequences with work run in rank order: one token for those that
//     decode, a chunk of the prompt for the others. Every decoding sequence has
//     its token set aside before chunks are cut, so prompts never stall decode.
//     max_prompt_tokens bounds the chunks of paced prompts together; those that
//     get nothing wait, unless then nothing at all could run. Residents come
//     before those that wait, whatever their rank; but of what decoding leaves
//     of a step the highest in rank of the prompts sets up to half aside: for
//     the prompts behind it that end with that, and for those that wait and
//     have room in memory: what they need if that is no more, all of it for one
//     of higher priority, and an eighth of a step for a longer one, if it ends
//     with half a step more or lets others in. So a prompt of little more than
//     half a step does not wait for the end of a long one. Nothing is set aside
//     for lower priorities, nor where max_prompt_tokens bounds prompts anyway,
//     or a step has less than eight chunk_multiple for them. Where it does
//     bound them, residents leave the first that waits its first chunk, if it
//     is of higher priority than a paced one of them that runs, and can be
//     admitted.
//  2. A sequence that needs a page when none is free takes it from the lowest
//     in rank: first those without work (an idle or stalled client), then those
//     ranked below itself. If there are none it waits, keeping what it holds.
//     Nothing is taken from those that may be about to end by themselves.
//  3. Waiting sequences are admitted in rank order while a slot and the pages
//     for all their known tokens are free. The first that does not fit stops
//     admission, so nothing is overtaken and nothing starves; nor is what was
//     preempted for want of a page in this very step. But a paced prompt for
//     which max_prompt_tokens has nothing left lets others pass. Idle
//     residents, and residents of lower priority, are preempted for one that
//     waits if that makes it fit; the tokens they had in the step are its to
//     have.
//  4. A sequence whose memory was saved in the host's is admitted like others.
//     Its copy takes time, so it runs when that has arrived; until then steps
//     go on without it. If nothing else can run, the step waits for one copy.
// The highest in rank of the residents proceeds, or its copy does, in this step
// or once max_prompt_tokens lets it, or one of higher priority is admitted; and
// what does not fit an empty server is refused before it gets here; so every
// sequence finishes. (While some are about to end, a plan may be empty: the
// next, after that, is not.)

struct SchedulerLimits {
  // Tokens in a step; >= EngineOptions::max_num_seqs + chunk_multiple - 1, as
  // Engine::Create sees to.
  int64_t max_batched_tokens;
  // Prompt tokens of one sequence in a step; >= chunk_multiple.
  int64_t max_chunk_tokens;
  int64_t page_tokens;  // 0: the model needs no pages
  // What a sequence computes in a step ends at a multiple of so many of its
  // tokens, at the end of its whole_tokens, or at its last. page_tokens is 0 or
  // a multiple of it.
  int64_t chunk_multiple = 1;
  // Tokens of all chunks of paced prompts in a step; 0, or >= chunk_multiple.
  // The first chunk may have more, where whole_tokens are.
  int64_t max_prompt_tokens = std::numeric_limits<int64_t>::max();
};

// One sequence as the policy sees it.
struct SequenceView {
  uint64_t id;
  int32_t priority;
  uint64_t arrival;      // unique
  int64_t num_tokens;    // known tokens
  int64_t num_computed;  // of these, already in the cache
  int64_t pages;         // held
  bool has_work;  // wants to run now; false: idle or its client is stalled
  // Without work, but a step that it is in is under way: it may be about to
  // end, and is no victim. REQUIRES: !has_work.
  bool ending = false;
  // What is computed is in the host's memory, or on its way from there: pages
  // for all known tokens are held already. A step with it would wait.
  bool from_host = false;
  // The most it may compute in a step, when less than the limits allow; >=
  // chunk_multiple.
  int64_t max_step_tokens = std::numeric_limits<int64_t>::max();
  // Whether its chunks count towards max_prompt_tokens.
  bool paced = true;
  // So many of its first tokens are computed in one step; within the limits of
  // one, and max_step_tokens while num_computed is less.
  int64_t whole_tokens = 0;
};

struct StepPlan {
  struct Entry {
    uint64_t id;
    int64_t num_tokens;  // to compute, from num_computed on
  };
  // In the order to apply: give up all memory, ...
  std::vector<uint64_t> preempt;
  // ... get a slot and the pages for all known tokens, ...
  std::vector<uint64_t> admit;
  // ... compute.
  std::vector<Entry> entries;
};

// REQUIRES: every waiting sequence has work and fits an empty server.
StepPlan PlanStep(const SchedulerLimits& limits, int64_t free_pages,
                  int64_t free_slots, absl::Span<const SequenceView> resident,
                  absl::Span<const SequenceView> waiting);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SCHEDULER_H_
