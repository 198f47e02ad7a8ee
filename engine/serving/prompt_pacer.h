#ifndef RECURVE_ENGINE_SERVING_PROMPT_PACER_H_
#define RECURVE_ENGINE_SERVING_PROMPT_PACER_H_

#include <cstdint>
#include <limits>

namespace recurve {

// Limits the tokens of long prompts in a step with decoding sequences, so that
// these wait for a token, on average, at most `max_slowdown` times as long as
// they would without prompts.
//
// Short prompts are not paced: under a constant arrival of them, delaying them
// would only leave fewer sequences per step, and fewer tokens in total.
//
// It measures d, the time of a decode step without prompts, and the time that a
// prompt's token adds to a step. A step of time t adds max_slowdown · d - t to
// a credit, which may become negative (a debt): during a debt, steps have no
// long prompts. At most kBurstSeconds, or the credit of one step, are saved. A
// chunk is as large as the credit allows, but never so small that its fixed
// costs dominate (kLeastTokens); such a chunk is paid for afterwards. The time
// that short prompts add to a step is not charged. Decode steps soon after a
// chunk are slower than others (clocks and caches): the difference is charged,
// too, and does not raise d.
//
// The split of a prompt into chunks changes no token, so neither do clocks.
//
// Thread safety: one thread at a time.
class PromptPacer {
 public:
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kLeastTokens = 256;
  static constexpr double kBurstSeconds = 0.1;
  // Results are multiples of this.
  static constexpr int64_t kMultiple = 64;
  // A prompt is short if it takes less than this, or less than kShortSteps
  // steps.
  static constexpr double kShortSeconds = 0.05;
  static constexpr double kShortSteps = 16;

  // max_slowdown: 0, no limit; else more than 1.
  explicit PromptPacer(double max_slowdown);

  // Whether a prompt of `tokens` tokens to compute is paced alongside
  // `decoding` sequences. Every prompt is while d has to be measured.
  bool Paces(int64_t decoding, int64_t tokens) const;
  // Maximum tokens of paced prompts in the next step, alongside `decoding`
  // sequences: 0, or kLeastTokens and more. `under_way`: those of a step with
  // decoding sequences whose time is not known yet.
  int64_t MaxTokens(int64_t decoding, int64_t under_way = 0) const;
  // A step is done; `paced_tokens` of its `prompt_tokens` were of paced
  // prompts.
  void OnStep(int64_t decoding, int64_t prompt_tokens, int64_t paced_tokens,
              double seconds);

 private:
  bool Stale(int64_t decoding) const;

  const double max_slowdown_;
  double decode_seconds_ = 0;      // d; 0: unknown
  int64_t measured_ = 0;           // decoding sequences when d was measured
  int64_t steps_since_ = 0;        // with prompts, since d was measured
  int64_t soon_steps_ = 0;         // that many more steps are soon after a
                                   // chunk
  int64_t grown_steps_ = 0;        // or soon after the number of sequences rose
  double token_seconds_ = 0;       // added by a prompt's token; 0: unknown
  double credit_ = kBurstSeconds;  // seconds; negative: a debt
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PROMPT_PACER_H_
