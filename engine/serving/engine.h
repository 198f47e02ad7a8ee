#ifndef RECURVE_ENGINE_SERVING_ENGINE_H_
#define RECURVE_ENGINE_SERVING_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "engine/program/model_runner.h"
#include "engine/serving/admission.h"
#include "engine/serving/event_sink.h"
#include "engine/serving/observer.h"
#include "engine/serving/options.h"
#include "engine/serving/prefix_cache.h"
#include "engine/serving/prompt_pacer.h"
#include "engine/serving/request.h"
#include "engine/serving/scheduler.h"
#include "engine/serving/sequence.h"
#include "engine/serving/state_store.h"
#include "engine/serving/waiting_queue.h"
#include "engine/tokenizer/tokenizer.h"
#include "kv_cache/cache_manager.h"

namespace recurve {

// Serves many sequences on one model: accepts requests from any thread, runs
// steps on its own thread, reports through each sequence's EventSink.
//
// A step: handle messages, plan, launch, wait, commit. If the runner allows it,
// the next step is launched before the last one is waited for, so that the
// device is hardly ever idle: sequences continue with tokens that only the
// device knows yet. The results of such a step for a sequence that has ended
// are discarded. The tokens of a sequence do not depend on other sequences.
//
// Thread safety: the public methods may be called from any thread, also from
// within EventSink calls.
class Engine {
 public:
  // `runner` has at least options.max_num_seqs slots; any others are unused.
  // `tokenizer` may be null; `observer` may be null. Both outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
      const Tokenizer* tokenizer, EngineObserver* observer);
  // Ends all remaining sequences with UNAVAILABLE.
  ~Engine();

  const EngineOptions& options() const { return options_; }
  const ModelInfo& model() const { return runner_->info(); }
  const CacheSpec& cache_spec() const { return cache_spec_; }
  const RequestLimits& limits() const { return limits_; }

  struct Submission {
    SequenceOptions options;
    Command command;
    // True: the sequence ends when the command is done (Generate). False: it
    // waits for more commands until Close (Decode).
    bool close_when_done = true;
    std::shared_ptr<EventSink> sink;
    // When its client gives up. If waiting would make the sequence miss it, it
    // is not accepted, or ends with DeadlineExceeded while it waits:
    // admission.h.
    std::optional<Clock::time_point> deadline = std::nullopt;
    // For errors: what the caller's interface calls the fields, and the prompt
    // (one of FieldNames; empty: append_ids).
    FieldNames names = {};
    std::string prompt_name = "";
    // The state that the sequence goes on from; null: none. The command may
    // then append nothing.
    SequenceStatePtr from = nullptr;
    // The prompt is that of the last submission before it that is no sample. If
    // a snapshot can be shared, that one computes it, and this one starts when
    // it is computed.
    bool sample = false;
  };
  // Accepts a sequence and returns its id, or an error: InvalidArgument,
  // ResourceExhausted (no place, or not in time), Unavailable (draining). After
  // an error the sink is never called.
  absl::StatusOr<uint64_t> Submit(Submission submission);
  // Called with submissions whose ranges are valid, before they take places. An
  // error refuses them.
  using Approve = absl::FunctionRef<absl::Status(absl::Span<const Submission>)>;
  // Accepts all of them, in this order, or none.
  absl::StatusOr<std::vector<uint64_t>> SubmitAll(
      std::vector<Submission> submissions, Approve approve);
  // How many sequences may be running or waiting at a time.
  int64_t max_active() const {
    return options_.max_num_seqs + options_.max_queued_requests;
  }
  // The status that Submit would return now for any request of `flow`, without
  // reading one. OK is no guarantee.
  absl::Status CheckAccepts(const Flow& flow) const;

  // The following take effect at the next step and ignore ids of ended
  // sequences. REQUIRES (Extend): the command passed ValidateCommand and
  // ValidateKept for this sequence.
  void Extend(uint64_t id, Command command);
  void Close(uint64_t id);
  // Ends the sequence with `status`, which is not OK.
  void Cancel(uint64_t id, absl::Status status);
  // The reader of a sequence whose OnStep returned false has caught up.
  void Resume(uint64_t id);
  // It has not caught up, but it does read: restarts its timeout.
  void GiveReaderTime(uint64_t id);

  // Cancel for every current sequence.
  void CancelAll(const absl::Status& status);
  // As Cancel with CANCELLED; NotFound if there is no such sequence.
  absl::Status Abort(uint64_t id);

  // --- States (engine_states.cc) ---

  // Those that have names. FailedPrecondition from CheckStates if the server
  // keeps none.
  StateStore& states() { return states_; }
  absl::Status CheckStates() const;
  // Whether sequences of one prompt may share what is computed of it.
  bool shares_prompts() const { return prefix_cache_.enabled(); }
  using StateDone = std::function<void(absl::StatusOr<SequenceStatePtr>)>;
  // Takes the state of a sequence of `flow`, between two commands: of its end,
  // or of a kept point. Calls `done` on the step thread, or at once. NotFound,
  // FailedPrecondition, OutOfRange or ResourceExhausted, as in state.proto.
  void TakeState(uint32_t flow, uint64_t id, std::optional<int64_t> at,
                 StateDone done);
  // Takes memory for a state that comes from elsewhere: its `computed` is of
  // the first `computed_tokens` tokens. Calls `done` as above, with a state
  // whose blocks the caller fills before it is published.
  void MakeState(SequenceState state, int64_t computed_tokens, StateDone done);
  // The state that the first `tokens` of `state` are: what its sequence was
  // when it had these. Keeps what is computed of no more than that. OutOfRange,
  // naming `field`, if `state` has fewer.
  absl::StatusOr<SequenceStatePtr> CutState(const SequenceState& state,
                                            int64_t tokens,
                                            absl::string_view field);
  // The memory of `state.computed`, block by block. Valid as long as the state.
  absl::StatusOr<std::vector<absl::Span<char>>> BlocksOf(
      const SequenceState& state) const;

  // Refuses new sequences from now on and ends idle ones; the others run on.
  // Returns the number of remaining sequences.
  int64_t Drain();
  bool draining() const { return draining_.load(); }

  EngineLoad load() const;
  // The load of one flow.
  struct FlowLoad {
    int64_t running = 0;  // with memory and work
    int64_t waiting = 0;
  };
  FlowLoad load_of(uint32_t flow) const;
  // OK, or why the engine can no longer serve: the device failed.
  absl::Status health() const;
  // Duration of the step in progress in seconds; 0 between steps.
  double step_age_seconds() const;

 private:
  struct Extension {
    uint64_t id;
    Command command;
  };
  struct Closing {
    uint64_t id;
  };
  struct Cancellation {
    uint64_t id;
    absl::Status status;
  };
  struct Resumption {
    uint64_t id;
  };
  struct ReaderProgress {
    uint64_t id;
  };
  struct DrainStart {};
  struct StateRequest {
    uint32_t flow;
    uint64_t id;
    std::optional<int64_t> at;
    StateDone done;
  };
  struct StateRoom {
    SequenceState state;
    int64_t computed_tokens;
    StateDone done;
  };
  // Memory that is no longer needed, or nothing: states have changed.
  struct DroppedState {
    std::unique_ptr<const SequenceState> state;
  };
  using Message =
      std::variant<std::shared_ptr<Sequence>, Extension, Closing, Cancellation,
                   Resumption, ReaderProgress, DrainStart, StateRequest,
                   StateRoom, DroppedState>;

  // One sequence's part of a step's batch.
  struct BatchEntry {
    std::shared_ptr<Sequence> sequence;
    int64_t num_tokens;
    struct WantedLogits {
      int64_t position;
      int32_t logit_index;
    };
    std::vector<WantedLogits> logits;
    std::vector<WantedLogits> scores;  // to become log-probabilities
    int32_t sample = -1;               // into StepBatch::samples, or -1
    bool draws = false;                // the sample is for a later command
    int32_t kept = -1;                 // into StepBatch::kept, or -1
  };

  // A step that was launched and not committed.
  struct PendingStep {
    StepBatch batch;
    std::vector<BatchEntry> entries;
    Clock::time_point started;
    // Number of decoding sequences, of prompt tokens in the same step, and how
    // many of these the pacer accounts for.
    int64_t decoding = 0;
    int64_t prompt_tokens = 0;
    int64_t paced_tokens = 0;
    // There was work at all times since the previous step was launched.
    bool follows_work = false;
  };

  Engine(const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
         const Tokenizer* tokenizer, EngineObserver* observer);

  // Whether sequences are accepted at all; and whether these are.
  absl::Status Accepting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckAdmission(const std::vector<Submission>& submissions) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t NewId(uint64_t* arrival) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Post(Message message);
  // The maximum number of logit rows that a sequence may give its stream in one
  // step.
  int64_t max_step_logits() const;
  // The maximum number of tokens of a prompt that one step gives
  // log-probabilities of: their rows of logits are in memory at a time
  // (engine_scores.cc).
  int64_t max_step_scores() const;
  static int64_t NowNs();

  // --- Step thread (engine_step.cc, engine_commit.cc) ---
  void Loop();
  // Handles messages; sleeps while there is nothing to run. False: stop.
  bool TakeMessages();
  bool HasRunnable() const;
  // Whether a new sequence is to wait until its leader has computed their
  // prompt. If so, it is noted.
  bool WaitForLeader(const Sequence& sequence);
  // Starts those that wait for it.
  void StartSamples(uint64_t leader);
  // Ends waiting sequences that would miss their deadline.
  void EndLate();
  // Updates the sequence's place in the queues below. To be called whenever its
  // lease, its command or `stalled` changed.
  void Reindex(Sequence& sequence);
  // Reports the sequence's standing to Admission.
  void SetStanding(Sequence& sequence, Sequence::Standing standing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Handle(Message& message);
  void Step();
  SequenceView View(const Sequence& sequence) const;
  StepPlan Plan();
  // Has the prompts that want log-probabilities share the rows of logits that a
  // step may have.
  void ShareScores(absl::Span<SequenceView> views) const;
  // Plans and launches a step, after the pending one if there is one. Then null
  // if the next step has to wait for the results of the pending one.
  absl::StatusOr<std::unique_ptr<PendingStep>> LaunchNext();
  bool MayRunAhead(const StepPlan& plan) const;
  // The value of SequenceView::from_host.
  bool FromHost(const Sequence& sequence) const;
  absl::Status BuildBatch(const StepPlan& plan, PendingStep* step);
  // Applies preemptions and admissions (engine_memory.cc).
  absl::Status ApplyMemory(const StepPlan& plan);
  // Records which waiting sequences were passed.
  void NotePasses(const StepPlan& plan);
  // Takes the sequence's memory, and saves it if there is room.
  absl::Status Preempt(Sequence& sequence);
  // A lease whose state is at sequence.num_computed().
  absl::StatusOr<SequenceLease> LeaseFor(Sequence& sequence);
  // What was saved of the sequence is restored, or no longer needed.
  void DropSaved(Sequence& sequence);
  // Has a waiting sequence that has computed nothing continue from what the
  // prefix cache has of it.
  void LookUp(Sequence& sequence);
  // TakeBase, if a snapshot is wanted there.
  absl::Status TakeSnapshot(Sequence& sequence, int64_t position);
  // Takes a snapshot of the sequence, whose state is at `position` once the
  // steps that were launched are done: its new base. `found`: later prompts
  // find it. False, without effect, if there is no room.
  absl::StatusOr<bool> TakeBase(Sequence& sequence, int64_t position,
                                bool found);
  // With PrefixCache::approximate: whether the sequence may continue from this.
  // Its tokens are then of the kinds that were computed.
  bool Adopt(Sequence& sequence, PrefixCache::Found& found);
  // Takes a snapshot of what a command has reached, if later prompts find it.
  absl::Status TakeCommandEnd(Sequence& sequence);
  // Applies the end of an equal prompt to a sequence that has computed nothing:
  // its first token is drawn.
  void FindEnd(Sequence& sequence);
  // Whether the logits after `end` tokens are to be kept.
  bool KeepsRow(const Sequence& sequence, int64_t end) const;
  // As TakeSnapshot, at the end of a prompt whose last logits are kept.
  absl::Status TakeEnd(Sequence& sequence, int64_t position);
  // The logits after the last token are there.
  void KeepRow(Sequence& sequence, absl::Span<const float> row);
  // Tells of it, once.
  void NoteAdmitted(Sequence& sequence);
  // Keeps the point that a command has reached.
  absl::Status KeepPoint(Sequence& sequence);
  static PrefixDomain DomainOf(const Sequence& sequence);
  // Where snapshots of a command's tokens are to be taken, apart from a first
  // prompt's.
  void PlanPlaces(Sequence& sequence);
  // Owned by a pointer that may be dropped on any thread.
  SequenceStatePtr Own(SequenceState state);
  absl::StatusOr<SequenceStatePtr> StateOf(const StateRequest& request);
  absl::StatusOr<SequenceStatePtr> StateOfEnd(Sequence& sequence);
  // Without recurrent state, a part of what is computed is state, too.
  void FindBefore(SequenceState& state) const;
  absl::StatusOr<SequenceStatePtr> RoomFor(StateRoom& room);
  absl::StatusOr<BatchEntry> AddToBatch(const StepPlan::Entry& planned,
                                        int32_t batch_index, StepBatch* batch);
  void CommitStep(const PendingStep& step, const StepOutput& output);
  void Commit(const BatchEntry& entry, const StepOutput& output);
  // Adds the log-probabilities of the entry's part of the prompt to the event.
  // Internal for logits that are no numbers.
  absl::Status Score(const BatchEntry& entry, const StepOutput& output,
                     StepEvent* event);
  // Delivers a token to the sequence: its event, and the consequences.
  void Deliver(Sequence& sequence, const SampleResult& sample, StepEvent event);
  void Emit(Sequence& sequence, StepEvent event);
  void FinishCommands(Sequence& sequence);
  // Starts queued commands; ends the sequence if no more will come.
  void AdvanceCommands(Sequence& sequence);
  void End(uint64_t id, const absl::Status& status);
  void FailAll(const absl::Status& status);
  void EndStalledClients();
  void PublishLoad();

  const EngineOptions options_;
  const std::unique_ptr<ModelRunner> runner_;
  const Tokenizer* const tokenizer_;
  EngineObserver* const observer_;
  const CacheSpec cache_spec_;
  RequestLimits limits_;
  const uint64_t id_key_;  // makes ids unguessable

  // --- Step thread only ---
  CacheManager cache_;
  PrefixCache prefix_cache_;
  StateStore states_;         // used by all threads
  int64_t saved_blocks_ = 0;  // of preempted sequences
  PromptPacer pacer_;
  std::unordered_map<uint64_t, std::shared_ptr<Sequence>> sequences_;
  // By standing, so that a step considers no more sequences than it may run.
  WaitingQueue waiting_;                    // those with work and no memory
  std::unordered_set<Sequence*> resident_;  // those with memory
  std::unordered_set<Sequence*> stalled_;
  std::vector<uint64_t> passed_over_;  // in the last step
  // Those that wait for a prompt, by the id of the sequence that computes it.
  std::unordered_map<uint64_t, std::vector<uint64_t>> samples_;
  std::unique_ptr<ThreadPool> score_threads_;  // once there are scores
  EngineLoad counters_;
  std::unique_ptr<PendingStep> pending_;  // between two calls of Step
  Clock::time_point last_step_done_;
  Clock::time_point last_expiry_;  // of states
  bool worked_ = false;  // there was work at all times since the last launch

  // --- Shared ---
  mutable Mutex mu_;
  CondVar wake_;
  std::vector<Message> inbox_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_arrival_ ABSL_GUARDED_BY(mu_) = 0;
  // An accepted sequence that has not ended.
  struct Open {
    Flow flow;
    int64_t commands = 1;  // commands not completed; 0: it is idle
  };
  std::unordered_map<uint64_t, Open> open_ ABSL_GUARDED_BY(mu_);
  Admission admission_ ABSL_GUARDED_BY(mu_);
  EngineLoad load_ ABSL_GUARDED_BY(mu_);
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> step_started_ns_{0};  // 0 between steps

  std::thread thread_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_ENGINE_H_
