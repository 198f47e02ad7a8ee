#include "engine/serving/engine.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

PrefixCache::Options PrefixCacheOptions(const EngineOptions& options,
                                        const CacheSpec& spec,
                                        const ModelInfo& model) {
  PrefixCache::Options of;
  of.any_kind = options.reuse_generated;
  of.kinds_differ = model.kinds_differ;
  of.has_state = spec.slot_bytes > 0;
  of.chunk_multiple = model.chunk_multiple;
  if (spec.num_host_blocks == 0) return of;
  of.reserve = options.preemption_bytes / HostBlockBytes(spec);
  of.enabled = options.prefix_cache && !model.whole_prompts &&
               of.reserve < spec.num_host_blocks;
  return of;
}

uint64_t RandomKey() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
    const Tokenizer* tokenizer, EngineObserver* observer) {
  RECURVE_RETURN_IF_ERROR(options.Validate());
  if (options.max_model_len < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len is ", options.max_model_len,
                     "; an engine needs at least 1"));
  }
  const CacheSpec spec = runner->cache_spec();
  if (spec.num_slots < options.max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-seqs is ", options.max_num_seqs,
                     "; the model has ", spec.num_slots, " state slots"));
  }
  if (PagesFor(options.max_model_len, spec) > spec.num_pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len is ", options.max_model_len,
                     "; the cache has ", spec.num_pages, " pages, which hold ",
                     int64_t{spec.num_pages} * kPageTokens, " tokens"));
  }
  // If a model was loaded, PlanChunks has ensured it.
  RECURVE_RETURN_IF_ERROR(options.ValidateMultiple(
      runner->info().chunk_multiple, runner->info().device));
  auto engine = std::unique_ptr<Engine>(
      new Engine(options, std::move(runner), tokenizer, observer));
  RECURVE_ASSIGN_OR_RETURN(
      engine->thread_,
      StartThread("the engine", [e = engine.get()] { e->Loop(); }));
  return engine;
}

Engine::Engine(const EngineOptions& options,
               std::unique_ptr<ModelRunner> runner, const Tokenizer* tokenizer,
               EngineObserver* observer)
    : options_(options),
      runner_(std::move(runner)),
      tokenizer_(tokenizer),
      observer_(observer),
      cache_spec_(runner_->cache_spec()),
      id_key_(RandomKey()),
      cache_(cache_spec_, &runner_->storage(),
             CacheOptions{options.poison_released}),
      prefix_cache_(PrefixCacheOptions(options, cache_spec_, runner_->info()),
                    &cache_),
      states_(prefix_cache_.enabled() ? options.state_bytes : 0,
              HostBlockBytes(cache_spec_), [this] { Post(DroppedState{}); }),
      pacer_(options.max_decode_slowdown),
      waiting_(2 * std::min(options.max_num_batched_tokens / 2,
                            options.max_chunk_tokens)),
      admission_({options.max_num_seqs, max_active(),
                  options.max_num_batched_tokens}) {
  limits_.vocab_size = runner_->info().vocab_size;
  limits_.max_model_len = options.max_model_len;
  limits_.has_tokenizer = tokenizer != nullptr;
  limits_.eos_token_ids = runner_->info().eos_token_ids;
  if (runner_->info().whole_prompts) {
    limits_.max_prompt_tokens =
        std::min(options.max_chunk_tokens, options.max_num_batched_tokens);
    limits_.max_prompt_logits =
        std::min(limits_.max_prompt_tokens, max_step_logits());
    limits_.max_scored_prompt =
        std::min(limits_.max_prompt_tokens, max_step_scores());
  }
  counters_.slots_total = cache_spec_.num_slots;
  counters_.pages_total = cache_spec_.num_pages;
  const int64_t host_bytes =
      cache_spec_.num_host_blocks * HostBlockBytes(cache_spec_);
  counters_.swap_bytes_total =
      prefix_cache_.enabled() ? std::min(options.preemption_bytes, host_bytes)
                              : host_bytes;
  counters_.prefix_cache_bytes_total = host_bytes - counters_.swap_bytes_total;
  counters_.state_bytes_total = states_.max_bytes();
  MutexLock lock(&mu_);
  load_ = counters_;
}

Engine::~Engine() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  states_.Clear();
  std::vector<Message> rest;  // states that were dropped since
  MutexLock lock(&mu_);
  rest.swap(inbox_);
}

absl::StatusOr<uint64_t> Engine::Submit(Submission submission) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> ids,
      SubmitAll(std::move(one), [](auto) { return absl::OkStatus(); }));
  return ids[0];
}

absl::StatusOr<std::vector<uint64_t>> Engine::SubmitAll(
    std::vector<Submission> submissions, Approve approve) {
  for (const Submission& s : submissions) {
    const std::string& prompt =
        s.prompt_name.empty() ? s.names.append_ids : s.prompt_name;
    const int64_t before = s.from == nullptr ? 0 : s.from->num_tokens();
    if (s.command.append.empty() && before == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(prompt, " is empty; at least one token is needed"));
    }
    RECURVE_RETURN_IF_ERROR(
        ValidateCommand(s.command, before, limits_, prompt, s.names));
    RECURVE_RETURN_IF_ERROR(ValidateOptions(s.options, limits_, s.names));
    if (s.close_when_done) {
      RECURVE_RETURN_IF_ERROR(
          ValidateMinTokens(s.options, s.command.generate, s.names));
    }
    RECURVE_RETURN_IF_ERROR(ValidateSnapshots(
        s.options, before + static_cast<int64_t>(s.command.append.size()),
        s.names));
  }
  RECURVE_RETURN_IF_ERROR(approve(submissions));
  std::vector<uint64_t> ids;
  {
    MutexLock lock(&mu_);
    RECURVE_RETURN_IF_ERROR(Accepting());
    RECURVE_RETURN_IF_ERROR(CheckAdmission(submissions));
    uint64_t leader = 0;
    for (Submission& submission : submissions) {
      const Flow flow = submission.options.flow;
      uint64_t arrival;
      const uint64_t id = NewId(&arrival);
      auto sequence = std::make_shared<Sequence>(
          id, arrival, std::move(submission.options),
          submission.close_when_done, tokenizer_, runner_->info().eos_token_ids,
          std::move(submission.sink), Clock::now());
      sequence->deadline = submission.deadline;
      if (runner_->info().whole_prompts) sequence->ComputePromptWhole();
      if (submission.from != nullptr) {
        sequence->StartFrom(std::move(submission.from));
      }
      if (submission.sample) {
        sequence->leader = leader;
      } else {
        leader = id;
      }
      sequence->Enqueue(std::move(submission.command));
      open_.emplace(id, Open{flow});
      admission_.Open(flow);
      // Now, so that the next Submit counts it.
      SetStanding(*sequence, Sequence::Standing::kWaiting);
      inbox_.emplace_back(std::move(sequence));
      ids.push_back(id);
    }
  }
  wake_.NotifyAll();
  return ids;
}

uint64_t Engine::NewId(uint64_t* arrival) {
  uint64_t id;
  do {  // repeat if the id, one of 2^64, is taken; 0 is none
    *arrival = next_arrival_++;
    const auto words = Philox4x32(id_key_, *arrival, 0);
    id = (uint64_t{words[0]} << 32) | words[1];
  } while (id == 0 || open_.contains(id));
  return id;
}

absl::Status Engine::CheckAccepts(const Flow& flow) const {
  MutexLock lock(&mu_);
  RECURVE_RETURN_IF_ERROR(Accepting());
  return admission_.CheckPlaces(flow, 1);
}

absl::Status Engine::Accepting() const {
  if (draining_.load()) return absl::UnavailableError("the server is draining");
  if (stop_) return absl::UnavailableError("the server is shutting down");
  if (!health_.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the device failed: ", health_.message()));
  }
  return absl::OkStatus();
}

absl::Status Engine::CheckAdmission(
    const std::vector<Submission>& submissions) const {
  // All submissions are of one request.
  RECURVE_RETURN_IF_ERROR(admission_.CheckPlaces(
      submissions[0].options.flow, static_cast<int64_t>(submissions.size())));
  const auto now = Clock::now();
  for (const Submission& submission : submissions) {
    if (!submission.deadline) continue;
    RECURVE_RETURN_IF_ERROR(admission_.CheckTime(
        submission.options.flow, submission.options.priority,
        {static_cast<int64_t>(submission.command.append.size()),
         submission.command.generate,
         Sequence::MayStop(submission.options.stopping,
                           runner_->info().eos_token_ids)},
        now, *submission.deadline));
  }
  return absl::OkStatus();
}

void Engine::Post(Message message) {
  {
    MutexLock lock(&mu_);
    inbox_.push_back(std::move(message));
  }
  wake_.NotifyAll();
}

void Engine::Extend(uint64_t id, Command command) {
  {
    MutexLock lock(&mu_);
    const auto found = open_.find(id);
    if (found == open_.end()) return;
    if (found->second.commands++ == 0) {
      admission_.SetActive(found->second.flow);
    }
    inbox_.emplace_back(Extension{id, std::move(command)});
  }
  wake_.NotifyAll();
}
void Engine::Close(uint64_t id) { Post(Closing{id}); }
void Engine::Cancel(uint64_t id, absl::Status status) {
  RECURVE_CHECK(!status.ok());
  Post(Cancellation{id, std::move(status)});
}
void Engine::CancelAll(const absl::Status& status) {
  RECURVE_CHECK(!status.ok());
  {
    MutexLock lock(&mu_);
    for (const auto& [id, open] : open_) {
      inbox_.emplace_back(Cancellation{id, status});
    }
  }
  wake_.NotifyAll();
}
void Engine::Resume(uint64_t id) { Post(Resumption{id}); }
void Engine::GiveReaderTime(uint64_t id) { Post(ReaderProgress{id}); }

absl::Status Engine::Abort(uint64_t id) {
  {
    MutexLock lock(&mu_);
    if (!open_.contains(id)) {
      return absl::NotFoundError(
          "no request with this id is running or waiting");
    }
  }
  Cancel(id, absl::CancelledError("the request was aborted"));
  return absl::OkStatus();
}

int64_t Engine::Drain() {
  if (!draining_.exchange(true)) Post(DrainStart{});
  MutexLock lock(&mu_);
  return static_cast<int64_t>(open_.size());
}

EngineLoad Engine::load() const {
  MutexLock lock(&mu_);
  EngineLoad load = load_;
  load.open = static_cast<int64_t>(open_.size());
  return load;
}

Engine::FlowLoad Engine::load_of(uint32_t flow) const {
  MutexLock lock(&mu_);
  return {admission_.running(flow), admission_.waiting(flow)};
}

absl::Status Engine::health() const {
  MutexLock lock(&mu_);
  return health_;
}

int64_t Engine::max_step_logits() const {
  constexpr int64_t kMaxBytes = 1 << 20;
  const int64_t row_bytes =
      limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  return std::max(runner_->info().chunk_multiple, kMaxBytes / row_bytes);
}

int64_t Engine::NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

double Engine::step_age_seconds() const {
  const int64_t started = step_started_ns_.load();
  return started == 0 ? 0.0 : static_cast<double>(NowNs() - started) * 1e-9;
}

}  // namespace recurve
