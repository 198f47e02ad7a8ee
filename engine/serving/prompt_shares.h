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
//  - Short prompts of higher priority than all long ones get all that they
//    need.
//  - Those of the same priority as the highest long one get half of the rest.
//  - The flows that have long prompts of that priority divide the remainder by
//    their weights.
//  - Prompts of lower priority have no share. If a half is less than the
//    smallest chunk, only the order decides.
// If max_prompt_tokens limits paced prompts, they share its tokens in the same
// way.
//
// A share is a reservation: its owner may lack memory. So a plan is made with
// shares, and the rest is then given to any sequence.
class PromptShares {
 public:
  // `tokens`: what decoding leaves of the step. `prompts`: all of them, the
  // highest priority first; within a priority, in the order in which shares are
  // given.
  PromptShares(const SchedulerLimits& limits, int64_t tokens,
               absl::Span<const SequenceView> prompts);

  // Whether `s` is short.
  bool Fits(const SequenceView& s) const;

  // The half for short prompts; 0 if there are no long ones.
  int64_t half() const { return all_.half; }
  // Whether `s` is one of those that get this half.
  bool HasHalf(const SequenceView& s) const;
  // Whether it is of higher priority than those.
  bool PrecedesHalf(const SequenceView& s) const;

  // The share of the step; and of max_prompt_tokens, for paced prompts if that
  // limits them. A prompt that must be computed in one step may have all of the
  // latter and need more.
  int64_t Of(const SequenceView& s) const { return all_.Of(s); }
  int64_t PacedOf(const SequenceView& s) const {
    return bounded_ ? LimitOf(s) : std::numeric_limits<int64_t>::max();
  }

 private:
  struct Shares {
    std::vector<std::pair<uint64_t, int64_t>> of;  // ids and tokens
    int64_t half = 0;
    int32_t priority = 0;  // of the highest long prompt, if half > 0

    int64_t Of(const SequenceView& s) const;
  };

  // The share of a paced prompt if these are limited.
  int64_t LimitOf(const SequenceView& s) const;
  // Maximum tokens of `s` in a step; and under max_prompt_tokens.
  int64_t NeedOf(const SequenceView& s) const;
  int64_t MostOf(const SequenceView& s) const;
  // `may_exceed`: the first may have all of the tokens and need more.
  Shares Make(int64_t tokens, bool may_exceed,
              absl::Span<const SequenceView> prompts) const;

  SchedulerLimits limits_;
  int64_t tokens_;
  // The first of the long prompts, if short ones preceded it in the last step.
  std::optional<uint64_t> insists_;
  bool bounded_ = false;  // by max_prompt_tokens
  Shares paced_;
  Shares all_;
};

// The largest number of tokens of `s`, up to `tokens`, that ends where a step
// may end.
int64_t CutChunk(const SchedulerLimits& limits, const SequenceView& s,
                 int64_t tokens);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PROMPT_SHARES_H_
