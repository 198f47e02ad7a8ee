#ifndef RECURVE_ENGINE_SERVING_PROMPT_SHARES_H_
#define RECURVE_ENGINE_SERVING_PROMPT_SHARES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/serving/scheduler.h"

namespace recurve {

// Shares the tokens that decoding leaves of a step between prompts, resident
// and waiting (rule 1 of scheduler.h). A prompt is short if it fits a step,
// else long.
//  - Short prompts of higher priority than all long ones have what they need.
//  - Those of the priority of the highest long one have half of what that
//    leaves.
//  - The flows that have long prompts of that priority divide the rest by their
//    weights.
//  - What is of lower priority has no share. Where a half is less than the
//    smallest chunk, the order alone decides.
// Where max_prompt_tokens bounds paced prompts, these share its tokens in the
// same way.
//
// A share is a reservation: its owner may lack memory. So a plan is made with
// shares, and what is left after that is given to anybody.
class PromptShares {
 public:
  // `tokens`: what decoding leaves of the step. `prompts`: all there are, the
  // highest priority first; of one priority, in the order in which they have
  // shares.
  PromptShares(const SchedulerLimits& limits, int64_t tokens,
               absl::Span<const SequenceView> prompts);

  // Whether `s` is short.
  bool Fits(const SequenceView& s) const;

  // The half of short prompts; 0 if there are no long ones.
  int64_t half() const { return all_.half; }
  // Whether `s` is of those who have it.
  bool HasHalf(const SequenceView& s) const;
  // Whether it is of higher priority than these.
  bool PrecedesHalf(const SequenceView& s) const;

  // Of the step; and of max_prompt_tokens, for paced ones where that bounds
  // them. What must be computed in one step may have all of the latter and need
  // more.
  int64_t Of(const SequenceView& s) const { return all_.Of(s); }
  int64_t PacedOf(const SequenceView& s) const {
    return bounded_ ? LimitOf(s) : std::numeric_limits<int64_t>::max();
  }

 private:
  struct Shares {
    std::vector<std::pair<uint64_t, int64_t>> of;  // ids and tokens
    int64_t half = 0;
    int32_t priority = 0;  // of the highest long prompt, where half > 0

    int64_t Of(const SequenceView& s) const;
  };

  // Of a paced prompt where these are bounded.
  int64_t LimitOf(const SequenceView& s) const;
  // What a step may compute of `s`, at most; and as max_prompt_tokens has it.
  int64_t NeedOf(const SequenceView& s) const;
  int64_t MostOf(const SequenceView& s) const;
  // `may_exceed`: the first may have all and need more.
  Shares Make(int64_t tokens, bool may_exceed,
              absl::Span<const SequenceView> prompts) const;

  SchedulerLimits limits_;
  int64_t tokens_;
  // The first of the long prompts, if short ones went before it in the last
  // step.
  std::optional<uint64_t> insists_;
  bool bounded_ = false;  // by max_prompt_tokens
  Shares paced_;
  Shares all_;
};

// Of `tokens` tokens of `s`, as many as may be computed, so that they end where
// a step may end.
int64_t CutChunk(const SchedulerLimits& limits, const SequenceView& s,
                 int64_t tokens);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PROMPT_SHARES_H_
