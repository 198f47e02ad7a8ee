#include "tests/testing/engine_harness.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/testing/test_random.h"

namespace recurve {

Script Script::Generate(std::vector<int32_t> prompt, int64_t generate,
                        LogitsMode logits) {
  return {{}, {{std::move(prompt), generate, logits}}};
}

std::vector<int32_t> Prompt(int64_t tokens, uint64_t seed) {
  return TestRandom(seed).Tokens(tokens, 200);
}

void AppendKinds(int64_t count, std::vector<TokenKind>* kinds) {
  const auto first = kinds->size();
  if (count < static_cast<int64_t>(kMinPromptTokens)) {
    kinds->resize(first + count, TokenKind::kStep);
  } else if (count <= static_cast<int64_t>(kShortPromptTokens)) {
    kinds->resize(first + count, TokenKind::kShortPrompt);
    (*kinds)[first] = TokenKind::kShortPromptStart;
  } else {
    kinds->resize(first + count, TokenKind::kPrompt);
    (*kinds)[first] = TokenKind::kPromptStart;
  }
}

EngineOptions OptionsFor(const FakeRunnerOptions& fake) {
  EngineOptions options;
  options.max_num_seqs = fake.num_slots;
  options.max_model_len =
      fake.num_pages == 0 ? 4096 : int64_t{fake.num_pages} * kPageTokens;
  options.poison_released = true;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options,
                                   const FakeRunnerOptions& fake,
                                   const Tokenizer* tokenizer) {
  auto engine = Engine::Create(options, std::make_unique<FakeRunner>(fake),
                               tokenizer, nullptr);
  RECURVE_CHECK(engine.ok());
  return *std::move(engine);
}

absl::StatusOr<uint64_t> Submit(Engine& engine, const Script& script,
                                std::shared_ptr<EventSink> sink,
                                bool close_when_done) {
  return engine.Submit({script.options, script.commands.front(),
                        close_when_done, std::move(sink)});
}

StreamRecord RunAlone(Engine& engine, const Script& script) {
  const bool one_command = script.commands.size() == 1;
  const auto sink = std::make_shared<RecordingSink>();
  const absl::StatusOr<uint64_t> id =
      Submit(engine, script, sink, /*close_when_done=*/one_command);
  if (!id.ok()) {
    StreamRecord refused;
    refused.end = id.status();
    return refused;
  }
  for (size_t i = 1; i < script.commands.size(); ++i)
    engine.Extend(*id, script.commands[i]);
  if (!one_command) engine.Close(*id);
  return sink->WaitEnd();
}

StreamRecord RunSolo(const FakeRunnerOptions& model, const Script& script,
                     const Tokenizer* tokenizer) {
  FakeRunnerOptions fake = model;
  if (fake.num_pages > 0) fake.num_pages = 64;
  fake.num_slots = 1;
  fake.on_run = nullptr;
  fake.device_seconds = nullptr;
  fake.step_time = std::chrono::microseconds(0);
  EngineOptions options = OptionsFor(fake);
  options.max_num_batched_tokens = options.max_chunk_tokens = 4096;
  return RunAlone(*MakeEngine(options, fake, tokenizer), script);
}

bool IsIdle(const Engine& engine) {
  const EngineLoad load = engine.load();
  return load.open == 0 && load.resident == 0 && load.waiting == 0 &&
         load.slots_used == 0 && load.pages_used == 0 &&
         load.swap_bytes_used == 0;
}

void StepGate::Enter(const StepBatch& batch) {
  MutexLock lock(&mu_);
  ++steps_;
  last_sequences_ = batch.num_sequences();
  held_ = holding_;
  changed_.NotifyAll();
  while (holding_ && !pass_) changed_.Wait(&mu_);
  held_ = false;
  pass_ = false;
}

void StepGate::Hold() {
  MutexLock lock(&mu_);
  holding_ = true;
}

int64_t StepGate::WaitHeld() {
  MutexLock lock(&mu_);
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (!held_ || pass_) {
    RECURVE_CHECK(Clock::now() < deadline);  // no step comes
    changed_.WaitFor(&mu_, std::chrono::milliseconds(100));
  }
  return steps_;
}

void StepGate::Pass() {
  MutexLock lock(&mu_);
  RECURVE_CHECK(held_);
  pass_ = true;
  changed_.NotifyAll();
}

void StepGate::Open() {
  MutexLock lock(&mu_);
  holding_ = false;
  changed_.NotifyAll();
}

int64_t StepGate::steps() const {
  MutexLock lock(&mu_);
  return steps_;
}

int64_t StepGate::last_sequences() const {
  MutexLock lock(&mu_);
  return last_sequences_;
}

}  // namespace recurve
