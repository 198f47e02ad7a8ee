// Log-probabilities of prompts (step thread): each step's rows of logits become
// log-probabilities, and are dropped.

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/thread_pool.h"
#include "engine/serving/engine.h"
#include "kernels/sampling/sampling.h"

namespace recurve {
namespace {

// Rows of logits that a step makes for log-probabilities, of all sequences
// together; and of one, whose output must stay small next to what a client's
// buffer holds.
constexpr int64_t kMaxScoreBytes = int64_t{128} << 20;
constexpr int64_t kMaxScoresOfOne = 512;

}  // namespace

int64_t Engine::max_step_scores() const {
  const int64_t row_bytes =
      limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  return std::max(runner_->info().chunk_multiple,
                  std::min(kMaxScoresOfOne, kMaxScoreBytes / row_bytes));
}

void Engine::ShareScores(absl::Span<SequenceView> views) const {
  std::vector<SequenceView*> wanting;
  for (SequenceView& view : views) {
    if (view.has_work && sequences_.at(view.id)->wants_scores()) {
      wanting.push_back(&view);
    }
  }
  if (wanting.empty()) return;
  const int64_t row_bytes =
      limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  const auto count = static_cast<int64_t>(wanting.size());
  const int64_t share =
      std::max(runner_->info().chunk_multiple,
               std::min(max_step_scores(), kMaxScoreBytes / row_bytes / count));
  for (SequenceView* view : wanting) {
    view->max_step_tokens = std::min(view->max_step_tokens, share);
    if (view->num_computed < view->whole_tokens) {
      view->max_step_tokens =
          std::max(view->max_step_tokens, view->whole_tokens);
    }
  }
}

absl::Status Engine::Score(const BatchEntry& entry, const StepOutput& output,
                           StepEvent* event) {
  if (entry.scores.empty()) return absl::OkStatus();
  if (score_threads_ == nullptr) {
    const int count =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
    absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
        ThreadPool::Create(count);
    // This thread alone is enough.
    if (!pool.ok()) pool = ThreadPool::Create(1);
    if (!pool.ok()) return pool.status();
    score_threads_ = *std::move(pool);
  }
  Sequence& sequence = *entry.sequence;
  const int64_t vocab = limits_.vocab_size;
  const auto count = static_cast<int64_t>(entry.scores.size());
  std::vector<absl::StatusOr<TokenScore>> scores(entry.scores.size(),
                                                 TokenScore());
  score_threads_->ParallelFor(count, [&](int64_t i) {
    const BatchEntry::WantedLogits& wanted = entry.scores[i];
    thread_local SamplingScratch scratch;
    scores[i] =
        ScoreToken(output.logits.subspan(wanted.logit_index * vocab, vocab),
                   sequence.tokens()[wanted.position + 1],
                   sequence.num_top_scores(), &scratch);
  });
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = entry.scores[i].position;
    if (!scores[i].ok()) {
      return absl::InternalError(absl::StrCat(scores[i].status().message(),
                                              ", at position ", position));
    }
    event->prompt_logprobs.push_back(
        {position + 1, sequence.tokens()[position + 1], scores[i]->logprob,
         scores[i]->rank, std::move(scores[i]->top)});
    sequence.ScoreEmitted(position);
  }
  return absl::OkStatus();
}

}  // namespace recurve
