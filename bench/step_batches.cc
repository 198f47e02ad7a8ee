#include "bench/step_batches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/program/step_runs.h"
#include "kv_cache/cache_spec.h"

namespace recurve {

StepBatch MakeBatch(int64_t batch, int64_t context, int64_t count,
                    bool generated, int64_t vocab, bool pages) {
  StepBatch step;
  step.wants_logits = false;
  const int64_t per = (context + kPageTokens - 1) / kPageTokens;
  step.page_table_stride = pages ? per : 0;
  step.query_start.push_back(0);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = context - count; t < context; ++t) {
      step.tokens.push_back(
          static_cast<int32_t>((b * 7919 + t * 104729) % vocab));
      step.positions.push_back(t);
      step.row_sequence.push_back(static_cast<int32_t>(b));
      step.kinds.push_back(generated              ? TokenKind::kStep
                           : t == context - count ? PromptStartOf(count)
                                                  : PromptOf(count));
    }
    step.query_start.push_back(static_cast<int32_t>(step.tokens.size()));
    for (int64_t p = 0; p < step.page_table_stride; ++p)
      step.page_table.push_back(static_cast<int32_t>(1 + b * per + p));
    step.slots.push_back(static_cast<int32_t>(b + 1));
    step.logit_rows.push_back(step.query_start.back() - 1);
  }
  CutRuns(&step);
  return step;
}

StepBatch WithPrompts(StepBatch step, int64_t count, int64_t prompt,
                      int64_t vocab) {
  const StepBatch own = MakeBatch(count, prompt, prompt, false, vocab,
                                  step.page_table_stride > 0);
  const auto decoding = static_cast<int32_t>(step.num_sequences());
  const auto append = [](const auto& from, auto* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(own.tokens, &step.tokens);
  append(own.positions, &step.positions);
  append(own.kinds, &step.kinds);
  for (int64_t b = 0; b < count; ++b) {
    const auto sequence = static_cast<int32_t>(step.num_sequences());
    step.row_sequence.insert(step.row_sequence.end(), prompt, sequence);
    step.query_start.push_back(
        static_cast<int32_t>(step.query_start.back() + prompt));
    step.slots.push_back(sequence + 1);
    step.logit_rows.push_back(step.query_start.back() - 1);
  }
  CutRuns(&step);
  if (step.page_table_stride == 0) return step;
  // Rows of pages are as wide as the longest sequence's.
  const int64_t stride =
      std::max(step.page_table_stride, own.page_table_stride);
  std::vector<int32_t> pages((decoding + count) * stride, 0);
  for (int64_t b = 0; b < decoding; ++b) {
    std::copy_n(step.page_table.begin() + b * step.page_table_stride,
                step.page_table_stride, pages.begin() + b * stride);
  }
  // Behind those of the sequences that decode.
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t p = 0; p < own.page_table_stride; ++p) {
      pages[(decoding + b) * stride + p] =
          static_cast<int32_t>(decoding * step.page_table_stride) +
          own.page_table[b * own.page_table_stride + p];
    }
  }
  step.page_table = std::move(pages);
  step.page_table_stride = stride;
  return step;
}

}  // namespace recurve
