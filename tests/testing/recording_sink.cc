#include "tests/testing/recording_sink.h"

#include <chrono>
#include <utility>

namespace recurve {

std::vector<int64_t> StreamRecord::LogitsPositions() const {
  std::vector<int64_t> positions;
  for (const StepEvent::LogitsRow& row : logits)
    positions.push_back(row.position);
  return positions;
}

void RecordingSink::Expect(bool ok, const char* rule) {
  if (!ok && record_.violation.empty()) record_.violation = rule;
}

void RecordingSink::OnAdmitted(double queue_seconds) {
  MutexLock lock(&mu_);
  Expect(!record_.admitted, "admitted twice");
  Expect(record_.ends == 0, "admitted after the end");
  Expect(queue_seconds >= 0, "negative time in the queue");
  record_.admitted = true;
  changed_.NotifyAll();
}

bool RecordingSink::OnStep(StepEvent event) {
  MutexLock lock(&mu_);
  Expect(record_.admitted, "a step before admission");
  Expect(record_.ends == 0, "a step after the end");
  Expect(!only_end_, "a step after the last text");
  if (event.has_token || !event.logits.empty() ||
      !event.prompt_logprobs.empty()) {
    Expect(!stalled_, "a step while the reader is behind");
  } else {
    // What was held back, at the end of the stream.
    Expect(!event.text.empty(), "an empty step");
    only_end_ = true;
  }
  record_.text += event.text;
  for (StepEvent::LogitsRow& row : event.logits) {
    Expect(row.position > last_row_, "logits out of order");
    last_row_ = row.position;
    record_.logits.push_back(std::move(row));
  }
  for (StepEvent::PromptLogprob& token : event.prompt_logprobs) {
    Expect(record_.tokens.empty(), "a token of the prompt after others");
    Expect(token.position ==
               static_cast<int64_t>(record_.prompt_logprobs.size()) + 1,
           "a token of the prompt out of order");
    record_.prompt_logprobs.push_back(std::move(token));
  }
  if (event.has_token) {
    Expect(event.index == next_index_, "a token out of order");
    next_index_ = event.index + 1;
    record_.tokens.push_back(event.token);
    record_.logprobs.push_back(event.logprob);
  }
  stalled_ = stalls_ && stalls_();
  changed_.NotifyAll();
  return !stalled_;
}

void RecordingSink::OnCommandDone(CommandResult result) {
  MutexLock lock(&mu_);
  Expect(record_.admitted, "a command done before admission");
  Expect(record_.ends == 0 && !only_end_, "a command done after the end");
  record_.text += result.text;
  last_row_ = -1;
  record_.results.push_back(std::move(result));
  changed_.NotifyAll();
}

void RecordingSink::OnEnd(absl::Status status) {
  MutexLock lock(&mu_);
  Expect(++record_.ends == 1, "ended twice");
  record_.end = std::move(status);
  changed_.NotifyAll();
}

StreamRecord RecordingSink::Record() const {
  MutexLock lock(&mu_);
  return record_;
}

template <typename Condition>
StreamRecord RecordingSink::Wait(Condition condition) const {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(1);
  MutexLock lock(&mu_);
  while (!record_.end && !condition(record_) &&
         std::chrono::steady_clock::now() < deadline) {
    changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
  }
  return record_;
}

StreamRecord RecordingSink::WaitEnd() const {
  return Wait([](const StreamRecord&) { return false; });
}
StreamRecord RecordingSink::WaitTokens(size_t count) const {
  return Wait([=](const StreamRecord& r) { return r.tokens.size() >= count; });
}
StreamRecord RecordingSink::WaitCommands(size_t count) const {
  return Wait([=](const StreamRecord& r) { return r.results.size() >= count; });
}

void RecordingSink::ExpectRollback(int64_t generated) {
  MutexLock lock(&mu_);
  next_index_ = generated;
}

bool RecordingSink::TakeStall() {
  MutexLock lock(&mu_);
  return std::exchange(stalled_, false);
}

}  // namespace recurve
