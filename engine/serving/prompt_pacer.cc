#include "engine/serving/prompt_pacer.h"

#include <algorithm>

namespace recurve {
namespace {

// Contexts grow: after this many steps with prompts, d is measured again.
constexpr int64_t kMostSteps = 32;
// Weight of a step slower than d: one slow step may be an outlier.
constexpr double kUp = 0.1;
// The extra time of decode steps soon after a chunk is caused by the chunk,
// except for growing contexts: maximum growth of d per step, relative.
constexpr int64_t kSoonSteps = 128;
constexpr double kGrowth = 5e-5;
// Exception: for this many steps after the number of sequences rose, d follows
// the measured times.
constexpr int64_t kGrownSteps = 32;
constexpr double kDown = 0.5;
constexpr double kTokenWeight = 0.5;
// Maximum debt, in decode steps, or the expected cost of the step's prompts, if
// that is more: so one outlier cannot block prompts for long.
constexpr double kMostOwed = 64;

}  // namespace

PromptPacer::PromptPacer(double max_slowdown) : max_slowdown_(max_slowdown) {}

bool PromptPacer::Stale(int64_t decoding) const {
  return decode_seconds_ == 0 || steps_since_ >= kMostSteps ||
         decoding > 2 * measured_ || 2 * decoding < measured_;
}

bool PromptPacer::Paces(int64_t decoding, int64_t tokens) const {
  if (max_slowdown_ == 0 || decoding == 0) return false;
  if (Stale(decoding)) return true;
  if (token_seconds_ == 0) return tokens > kLeastTokens;
  return token_seconds_ * static_cast<double>(tokens) >
         std::max(kShortSeconds, kShortSteps * decode_seconds_);
}

int64_t PromptPacer::MaxTokens(int64_t decoding, int64_t under_way) const {
  if (max_slowdown_ == 0 || decoding == 0) return kUnlimited;
  double credit = credit_;
  if (under_way > 0) {
    // The charge that OnStep will make at the expected cost.
    if (token_seconds_ == 0) return 0;
    credit += (max_slowdown_ - 1) * decode_seconds_ -
              token_seconds_ * static_cast<double>(under_way);
  }
  if (Stale(decoding) || credit < 0) return 0;
  if (token_seconds_ == 0) return kLeastTokens;
  const double spend = credit + (max_slowdown_ - 1) * decode_seconds_;
  const double tokens = std::min(spend / token_seconds_, 1e9);
  return std::max(kLeastTokens,
                  static_cast<int64_t>(tokens) / kMultiple * kMultiple);
}

void PromptPacer::OnStep(int64_t decoding, int64_t prompt_tokens,
                         int64_t paced_tokens, double seconds) {
  if (max_slowdown_ == 0 || decoding == 0) return;
  const double expected = token_seconds_ * static_cast<double>(paced_tokens);
  const bool soon = soon_steps_ > 0;
  soon_steps_ =
      paced_tokens > 0 ? kSoonSteps : std::max<int64_t>(0, soon_steps_ - 1);
  if (prompt_tokens == 0) {
    if (Stale(decoding)) {
      decode_seconds_ = seconds;
    } else {
      if (decoding > measured_) grown_steps_ = kGrownSteps;
      // Soon after a chunk d rises only slowly, so a single fast step then
      // lowers it only a little.
      const double weight = seconds > decode_seconds_ || soon ? kUp : kDown;
      double change = weight * (seconds - decode_seconds_);
      if (soon && grown_steps_ == 0)
        change = std::min(change, kGrowth * decode_seconds_);
      decode_seconds_ += change;
      grown_steps_ = std::max<int64_t>(0, grown_steps_ - 1);
    }
    measured_ = decoding;
    steps_since_ = 0;
  } else if (decode_seconds_ > 0) {
    ++steps_since_;
    decode_seconds_ = std::min(decode_seconds_, seconds);  // an upper bound of
                                                           // d
    const double added = std::max(0.0, seconds - decode_seconds_) /
                         static_cast<double>(prompt_tokens);
    // With few tokens, most of the added time is the step's.
    if (token_seconds_ == 0) {
      token_seconds_ = added;
    } else if (prompt_tokens >= kMultiple || added < token_seconds_) {
      token_seconds_ += kTokenWeight * (added - token_seconds_);
    }
  }
  const double step = decode_seconds_;
  // A decode step without prompts that is slower than usual is caused by
  // prompts in part at most; if they were charged for all of it, frequent slow
  // steps would block them for ever.
  double cost = std::min(seconds, step);
  if (prompt_tokens == 0 && soon) {
    cost = std::min(seconds, step + 0.5 * (max_slowdown_ - 1) * step);
  }
  if (paced_tokens > 0) {
    cost += (seconds - cost) * static_cast<double>(paced_tokens) /
            static_cast<double>(prompt_tokens);
  }
  const double most = std::max(kBurstSeconds, (max_slowdown_ - 1) * step);
  const double least = std::min(credit_, -std::max(kMostOwed * step, expected));
  credit_ = std::clamp(credit_ + max_slowdown_ * step - cost, least, most);
}

}  // namespace recurve
