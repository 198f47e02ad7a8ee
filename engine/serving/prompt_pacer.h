#ifndef RECURVE_ENGINE_SERVING_PROMPT_PACER_H_
#define RECURVE_ENGINE_SERVING_PROMPT_PACER_H_

#include <cstdint>
#include <limits>

namespace recurve {

// How many tokens of long prompts go into a step beside sequences that decode,
// so that these wait for a token, on average, at most `max_slowdown` times as
// long as they would without.
//
// Short prompts are not paced: where they come in all the time, held up they
// would only leave steps with fewer sequences in them, and fewer tokens in all.
//
// It measures: d, the time of a step of decoding alone, and what a prompt's
// token adds to a step. A step of time t beside d leaves max_slowdown · d - t
// to be spent, or owed: while something is owed, steps have no long prompts. Up
// to kBurstSeconds, or what one step leaves, are saved. A chunk is as large as
// what may be spent pays for, but never so small that its fixed costs are most
// of it (kLeastTokens); such a chunk is paid for afterwards. What short prompts
// add to a step is not charged. Steps of decoding soon after a chunk are slower
// than others (clocks and caches): that is charged, too, and does not raise d.
//
// The cut of a prompt into chunks changes no token, so neither do clocks.
//
// Thread safety: one thread at a time.
class PromptPacer {
 public:
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kLeastTokens = 256;
  static constexpr double kBurstSeconds = 0.1;
  // Answers are multiples of this.
  static constexpr int64_t kMultiple = 64;
  // A prompt is short if it takes less than this, or than so many steps.
  static constexpr double kShortSeconds = 0.05;
  static constexpr double kShortSteps = 16;

  // max_slowdown: 0, no limit; else more than 1.
  explicit PromptPacer(double max_slowdown);

  // Whether a prompt of so many tokens to compute is paced beside `decoding`
  // sequences. Every one is while d has to be measured.
  bool Paces(int64_t decoding, int64_t tokens) const;
  // Tokens of paced prompts in the next step, at most, beside `decoding`
  // sequences: 0, or kLeastTokens and more. `under_way`: those of a step that
  // sequences decode in, too, and whose time is not known yet.
  int64_t MaxTokens(int64_t decoding, int64_t under_way = 0) const;
  // A step is done; `paced_tokens` of its prompts' tokens were of paced ones.
  void OnStep(int64_t decoding, int64_t prompt_tokens, int64_t paced_tokens,
              double seconds);

 private:
  bool Stale(int64_t decoding) const;

  const double max_slowdown_;
  double decode_seconds_ = 0;      // d; 0: not known
  int64_t measured_ = 0;           // sequences that d is of
  int64_t steps_since_ = 0;        // with prompts, since d was measured
  int64_t soon_steps_ = 0;         // so many more are soon after a chunk
  int64_t grown_steps_ = 0;        // or soon after there were more sequences
  double token_seconds_ = 0;       // that a prompt's token adds; 0: not known
  double credit_ = kBurstSeconds;  // seconds; negative: owed
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PROMPT_PACER_H_
