#ifndef RECURVE_ENGINE_SERVING_SCHEDULER_H_
#define RECURVE_ENGINE_SERVING_SCHEDULER_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace recurve {

// Decides what runs in the next step: a pure function of sequences and limits,
// without state or side effects, so that a policy can be read, tested and
// replaced on its own.
//
// The policy: continuous batching, in rank order. Sequences are ranked by
// priority (higher first), then by turn (lower first; see SequenceView), then
// by arrival (earlier first). If all sequences are of one flow, that is first
// come, first served within a priority.
//  1. Resident sequences with work run in rank order: one token for those that
//     decode, a chunk of the prompt for the others. Every decoding sequence has
//     its token reserved before chunks are cut, so prompts never stall decode.
//     prompt_shares.h shares out the rest: short prompts have half of it before
//     long ones, and flows share the remainder. max_prompt_tokens limits the
//     chunks of paced prompts together; prompts that get nothing wait, unless
//     then nothing at all could run.
//  2. A sequence that needs a page when none is free takes it from the lowest
//     in rank: first from those without work (an idle or stalled client), then
//     from those ranked below itself. If there are none it waits, keeping its
//     memory. Nothing is taken from sequences that may be about to end by
//     themselves.
//  3. Waiting sequences are admitted in rank order while a slot, the pages for
//     all their known tokens, and tokens of the step are free. The first that
//     lacks one of them stops all behind it except two kinds. Short prompts
//     pass it; if it lacks pages, they pass it in at most kMaxPasses steps, so
//     nothing starves. Prompts of other flows pass one that lacks only tokens,
//     up to their shares. A sequence preempted in this very step because it ran
//     out of pages is not passed, and a paced prompt for which
//     max_prompt_tokens has nothing left lets all pass. Idle residents,
//     residents of lower priority, and residents of other flows whose turn is
//     later, are preempted for a waiting sequence if that makes it fit; it
//     inherits their token budget.
//  4. A sequence whose memory was saved in host memory is admitted like others,
//     with pages counted for all of it: those that it will share with residents
//     are not known here, and not needed. Its copy takes time, so it runs after
//     the copy has arrived; until then steps continue without it. If nothing
//     else can run, the step waits for one copy.
//
// Long prompts do not delay short ones. Let T be the tokens that decoding
// leaves of a step, and h the least of floor(T / 2), max_chunk_tokens and the
// prompt's max_step_tokens. A prompt is short if it has at most 2h tokens. Of
// the short prompts of a priority, those that hold memory come first, then the
// others by rank. One that holds memory, or finds it free, is computed in at
// most ceil(n / h) steps, n being its tokens and those of the short prompts
// before it: alone, in two. If max_prompt_tokens is less than T, it replaces T
// for paced prompts. If chunks end at multiples of m, h is less by m - 1. If a
// long prompt must have more than T - h tokens in one step, short ones have
// their half in every second step.
//
// Progress: the resident highest in rank, or its copy, proceeds in this step or
// the next or once max_prompt_tokens permits, or a sequence that ranks above it
// is admitted; and a sequence that does not fit an empty server is refused
// before it gets here; so every sequence finishes. (While some are about to
// end, a plan may be empty: the next, after that, is not.)

// Maximum number of steps in which a sequence that lacks pages is passed.
inline constexpr int kMaxPasses = 8;

struct SchedulerLimits {
  // Tokens per step; >= EngineOptions::max_num_seqs + chunk_multiple - 1, which
  // Engine::Create ensures.
  int64_t max_batched_tokens;
  // Prompt tokens of one sequence per step; >= chunk_multiple.
  int64_t max_chunk_tokens;
  int64_t page_tokens;  // 0: the model needs no pages
  // A sequence's tokens in a step end at a multiple of this, at the end of its
  // whole_tokens, or at its last. page_tokens is 0 or a multiple of it.
  int64_t chunk_multiple = 1;
  // Tokens of all chunks of paced prompts in a step; 0, or >= chunk_multiple.
  // The first chunk may exceed it because of whole_tokens.
  int64_t max_prompt_tokens = std::numeric_limits<int64_t>::max();
};

// The policy's view of one sequence.
struct SequenceView {
  uint64_t id;
  int32_t priority;
  uint64_t arrival;      // unique
  int64_t num_tokens;    // known tokens
  int64_t num_computed;  // of these, already computed into the cache
  int64_t pages;         // held
  bool has_work;  // wants to run now; false: idle or its client is stalled
  // Without work, but in a step in flight: it may be about to end, and is not
  // preempted. REQUIRES: !has_work.
  bool ending = false;
  // Its computed state is in host memory, or being copied from there: pages for
  // all known tokens are held already. A step with it would wait.
  bool from_host = false;
  // Maximum tokens in a step, if less than the limits allow; >= chunk_multiple.
  int64_t max_step_tokens = std::numeric_limits<int64_t>::max();
  // Its tokens in a step end here at the latest: its state is to be copied at
  // that place. A multiple of chunk_multiple; up to num_computed: nowhere.
  int64_t cut = 0;
  // Whether its chunks count towards max_prompt_tokens.
  bool paced = true;
  // This many first tokens are computed in one step; within the limits of a
  // step, and max_step_tokens while num_computed is less.
  int64_t whole_tokens = 0;
  // Tokens left to compute when its prompt arrived, or when its computed state
  // was lost: they decide whether it is short or long, until it is done. 0: as
  // many as are left now.
  int64_t prompt_tokens = 0;
  // Its flow: flows share steps and memory by their weights, which are above 0.
  // `turn` is the number of sequences with work of its flow that rank before
  // it, divided by the flow's weight: AssignTurns.
  uint32_t flow = 0;
  double weight = 1;
  double turn = 0;
  // In the previous step it lacked tokens, and nothing else.
  bool passed_over = false;
  // Number of steps in which others have passed it while it lacked pages.
  int passes = 0;
  // Waiting: pages that residents hold and that it will hold as well, of those
  // for its known tokens. A plan that counts on them preempts no one else.
  int64_t found_pages = 0;
  // Those of `pages` that other residents may hold as well, none twice: taking
  // its memory frees one of them only if no other has it.
  absl::Span<const int32_t> page_ids = {};

  // Tokens left to compute.
  int64_t rest() const { return num_tokens - num_computed; }
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
  // Waiting sequences that lack pages and were passed by others in this plan.
  std::vector<uint64_t> passed = {};
  // Waiting sequences that lacked nothing but tokens.
  std::vector<uint64_t> passed_over = {};
};

// The order above.
bool RanksAbove(const SequenceView& a, const SequenceView& b);

// Sets `turn` of all sequences. They must include all sequences of their flows,
// or all that rank first.
void AssignTurns(absl::Span<SequenceView> sequences);

// REQUIRES: every waiting sequence has work and fits an empty server.
StepPlan PlanStep(const SchedulerLimits& limits, int64_t free_pages,
                  int64_t free_slots, absl::Span<const SequenceView> resident,
                  absl::Span<const SequenceView> waiting);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_SCHEDULER_H_
