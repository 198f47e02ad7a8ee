#include "engine/program/warm_up.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "engine/program/step_runs.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {
namespace {

// Short prompts in a step, and tokens of each: products of few and of many rows
// use different kernels.
struct Prompts {
  int64_t count;
  int64_t tokens;
};
constexpr Prompts kShortPrompts[] = {{1, 64},  {1, 128}, {1, 256}, {1, 384},
                                     {2, 256}, {4, 256}, {6, 256}};
static_assert(kShortPromptTokens == 384);

// Tokens that later commands append to a sequence: a few, not a multiple of
// those that one launch computes together, or a prompt.
constexpr int64_t kFewTokens = 9;
constexpr int64_t kLaterPromptTokens = 64;
static_assert(kFewTokens < int64_t{kMinPromptTokens});

// Adds a sequence that has `count` tokens up to `position`, the first of
// kind `first`, the others of `next`.
void AddSequence(int64_t position, int64_t count, TokenKind first,
                 TokenKind next, StepBatch* step) {
  if (step->query_start.empty()) step->query_start.push_back(0);
  const auto sequence = static_cast<int32_t>(step->num_sequences());
  for (int64_t i = 0; i < count; ++i) {
    step->tokens.push_back(0);
    step->positions.push_back(position - count + 1 + i);
    step->row_sequence.push_back(sequence);
    step->kinds.push_back(i == 0 ? first : next);
  }
  step->query_start.push_back(static_cast<int32_t>(step->num_tokens()));
  step->slots.push_back(0);
  step->logit_rows.push_back(static_cast<int32_t>(step->num_tokens() - 1));
}

void AddStep(int64_t position, StepBatch* step) {
  AddSequence(position, 1, TokenKind::kStep, TokenKind::kStep, step);
}

// Gives every sequence of the step page 0 for all of `positions` positions.
void SetPages(int64_t positions, bool pages, StepBatch* step) {
  step->wants_logits = false;
  if (!pages) return;
  step->page_table_stride = (positions + kTpaPageTokens - 1) / kTpaPageTokens;
  step->page_table.assign(step->num_sequences() * step->page_table_stride, 0);
}

// One decode token at each of these positions.
StepBatch Decoding(const std::vector<int64_t>& positions, bool pages) {
  StepBatch step;
  for (const int64_t position : positions) AddStep(position, &step);
  SetPages(*std::max_element(positions.begin(), positions.end()) + 1, pages,
           &step);
  return step;
}

}  // namespace

std::vector<StepBatch> WarmUpSteps(
    const WarmUpLimits& limits,
    absl::FunctionRef<int64_t(absl::Span<const int64_t>, int64_t)> variant_of) {
  const bool pages = limits.max_pages > 0;
  const int64_t max_positions =
      pages ? limits.max_pages * kTpaPageTokens : kWarmUpPromptTokens;
  std::vector<StepBatch> steps(1);
  const bool beside = limits.max_sequences > 1 && limits.max_tokens > 1;
  const int64_t prompt = std::min({limits.max_tokens - (beside ? 1 : 0),
                                   max_positions, kWarmUpPromptTokens});
  // From a longer prompt, if the model allows one.
  const bool is_long = max_positions > static_cast<int64_t>(kShortPromptTokens);
  const auto whole =
      static_cast<size_t>(is_long ? int64_t{kShortPromptTokens} + 1 : prompt);
  AddSequence(prompt - 1, prompt, PromptStartOf(whole), PromptOf(whole),
              &steps[0]);
  if (beside) AddStep(0, &steps[0]);
  SetPages(prompt, pages, &steps[0]);

  for (int64_t bucket = 1;; bucket *= 2) {
    const int64_t sequences = std::min(bucket, limits.max_sequences);
    std::set<int64_t> seen;
    const auto add_if_new = [&](const std::vector<int64_t>& positions) {
      if (!seen.insert(variant_of(positions, bucket)).second) return;
      steps.push_back(Decoding(positions, pages));
      steps.push_back(steps.back());
    };
    std::vector<int64_t> one_long(sequences, 0);
    add_if_new(one_long);
    for (int64_t end = kTpaPageTokens; pages && end <= max_positions;
         end += kTpaPageTokens) {
      add_if_new(std::vector<int64_t>(sequences, end - 1));
      one_long[0] = end - 1;
      add_if_new(one_long);
    }
    if (bucket >= limits.max_sequences) break;
  }

  for (const Prompts& prompts : kShortPrompts) {
    if (prompts.tokens > max_positions ||
        prompts.count * prompts.tokens > limits.max_tokens ||
        prompts.count > limits.max_sequences) {
      break;
    }
    StepBatch step;
    for (int64_t i = 0; i < prompts.count; ++i) {
      AddSequence(prompts.tokens - 1, prompts.tokens,
                  TokenKind::kShortPromptStart, TokenKind::kShortPrompt, &step);
    }
    SetPages(prompts.tokens, pages, &step);
    steps.push_back(std::move(step));
  }

  const int64_t few = std::min(
      {limits.max_tokens - (beside ? 1 : 0), max_positions, kFewTokens});
  if (few > 1) {
    StepBatch step;
    AddSequence(few - 1, few, TokenKind::kStep, TokenKind::kStep, &step);
    if (beside) AddStep(0, &step);
    SetPages(few, pages, &step);
    steps.push_back(std::move(step));
  }
  // Not from position 0: a prompt there may be processed as a whole.
  const int64_t later =
      std::min({limits.max_tokens, max_positions - 1, kLaterPromptTokens});
  if (later >= int64_t{kMinPromptTokens}) {
    StepBatch step;
    AddSequence(later, later, TokenKind::kShortPromptStart,
                TokenKind::kShortPrompt, &step);
    SetPages(later + 1, pages, &step);
    steps.push_back(std::move(step));
  }
  for (StepBatch& step : steps) CutRuns(&step);
  return steps;
}

}  // namespace recurve
