#include "engine/serving/admission.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/serving/seconds_between.h"

namespace recurve {
namespace {

// Weight of the latest step, or sequence, in a running average.
constexpr double kStepRate = 0.05;
constexpr double kSequenceRate = 0.05;

void Average(std::optional<double>* average, double value, double rate) {
  *average =
      average->has_value() ? **average + rate * (value - **average) : value;
}

constexpr char kTooLate[] = "recurve/too-late";

}  // namespace

bool IsTooLate(const absl::Status& status) {
  return status.GetPayload(kTooLate).has_value();
}

Admission::FlowState& Admission::StateOf(const Flow& flow) {
  FlowState& state = flows_[flow.id];
  state.weight = flow.weight;
  return state;
}

const Admission::FlowState* Admission::Find(uint32_t flow) const {
  const auto found = flows_.find(flow);
  return found == flows_.end() ? nullptr : &found->second;
}

// --- Places ---

absl::Status Admission::CheckPlaces(const Flow& flow, int64_t count) const {
  const auto refuse = [&](const FairPlaces& places, absl::string_view what,
                          absl::string_view limit) {
    const std::string others =
        flow.part < 1
            ? absl::StrCat(", ", places.used_by(flow.id), " of them yours")
            : "";
    return absl::ResourceExhaustedError(absl::StrCat(
        places.used(), " requests are ", what, others,
        count > 1 ? absl::StrCat(" and ", count, " come") : "",
        "; this server takes ", limit,
        flow.part < 1 ? ", and half of these it keeps for the tenants' shares"
                      : ""));
  };
  if (active_.Left(flow) < count) {
    return refuse(active_, "running or waiting",
                  absl::StrCat(limits_.slots, " running and ",
                               limits_.max_active - limits_.slots, " waiting"));
  }
  if (open_.Left(flow) < count) {
    return refuse(open_, "open, with those that are idle",
                  absl::StrCat(open_.limit()));
  }
  return absl::OkStatus();
}

void Admission::Open(const Flow& flow) {
  open_.Take(flow, 1);
  active_.Take(flow, 1);
}

void Admission::Close(const Flow& flow, bool active) {
  open_.Give(flow, 1);
  if (active) active_.Give(flow, 1);
}

// --- Time ---

double Admission::PromptSteps(int64_t tokens) const {
  return std::ceil(static_cast<double>(tokens) /
                   static_cast<double>(limits_.max_step_tokens));
}

void Admission::BeginWaiting(const Flow& flow, int32_t priority,
                             const Work& work) {
  FlowState& state = StateOf(flow);
  Backlog& backlog = state.backlog[priority];
  ++state.waiting;
  ++backlog.sequences;
  backlog.sure_steps += PromptSteps(work.prompt_tokens);
  if (work.may_stop) {
    backlog.stoppable_tokens += work.generate;
  } else {
    backlog.sure_steps += static_cast<double>(work.generate);
  }
}

void Admission::EndWaiting(const Flow& flow, int32_t priority,
                           const Work& work) {
  FlowState& state = StateOf(flow);
  Backlog& backlog = state.backlog[priority];
  --state.waiting;
  RECURVE_CHECK(state.waiting >= 0);
  if (--backlog.sequences == 0) {
    state.backlog.erase(priority);
    return;
  }
  backlog.sure_steps -= PromptSteps(work.prompt_tokens);
  if (work.may_stop) {
    backlog.stoppable_tokens -= work.generate;
  } else {
    backlog.sure_steps -= static_cast<double>(work.generate);
  }
}

void Admission::BeginRunning(const Flow& flow) { ++StateOf(flow).running; }
void Admission::EndRunning(const Flow& flow) {
  const int64_t left = --StateOf(flow).running;
  RECURVE_CHECK(left >= 0);
}

void Admission::OnStep(double seconds) {
  Average(&step_seconds_, seconds, kStepRate);
}

void Admission::OnDone(const Flow& flow, const Work& asked, int64_t generated) {
  Average(&steps_per_sequence_,
          PromptSteps(asked.prompt_tokens) + static_cast<double>(generated),
          kSequenceRate);
  if (!asked.may_stop || asked.generate == 0) return;
  Average(&StateOf(flow).generated_part,
          static_cast<double>(generated) / static_cast<double>(asked.generate),
          kSequenceRate);
}

Admission::Slots Admission::SlotsOf(const Flow& flow) const {
  double weights = flow.weight;
  int64_t others = 0;  // that run or wait
  for (const auto& [id, state] : flows_) {
    if (id == flow.id || state.running + state.waiting == 0) continue;
    weights += state.weight;
    others += state.running + state.waiting;
  }
  const auto slots = static_cast<double>(limits_.slots);
  const double share = std::max({slots * flow.weight / weights,
                                 slots - static_cast<double>(others), 1.0});
  const FlowState* state = Find(flow.id);
  const int64_t mine = state == nullptr ? 0 : state->running + state->waiting;
  return {share, share - static_cast<double>(mine)};
}

std::optional<double> Admission::EstimateWait(const Flow& flow,
                                              int32_t priority) const {
  const Slots slots = SlotsOf(flow);
  if (slots.free >= 1) return 0;
  if (!step_seconds_ || !steps_per_sequence_) return std::nullopt;
  double steps = *steps_per_sequence_;
  if (const FlowState* state = Find(flow.id); state != nullptr) {
    for (auto it = state->backlog.lower_bound(priority);
         it != state->backlog.end(); ++it) {
      steps += it->second.sure_steps;
      if (it->second.stoppable_tokens == 0) continue;
      if (!state->generated_part) return std::nullopt;
      steps += *state->generated_part *
               static_cast<double>(it->second.stoppable_tokens);
    }
  }
  return steps / slots.share * *step_seconds_;
}

std::optional<double> Admission::EstimateRun(const Flow& flow,
                                             const Work& work) const {
  if (!step_seconds_) return std::nullopt;
  double part = 1;
  if (work.may_stop) {
    const FlowState* state = Find(flow.id);
    if (state == nullptr || !state->generated_part) return std::nullopt;
    part = *state->generated_part;
  }
  return *step_seconds_ * (PromptSteps(work.prompt_tokens) +
                           part * static_cast<double>(work.generate));
}

absl::Status Admission::CheckTime(const Flow& flow, int32_t priority,
                                  const Work& work, Clock::time_point now,
                                  Clock::time_point deadline) const {
  const double left = SecondsBetween(now, deadline);
  const double wait = EstimateWait(flow, priority).value_or(0);
  double run = EstimateRun(flow, work).value_or(0);
  // It would miss the deadline even without a wait: its client may want the
  // tokens until then.
  if (run > left) run = 0;
  if (wait == 0 || wait + run <= left) return absl::OkStatus();
  absl::Status late = absl::ResourceExhaustedError(
      absl::StrFormat("the wait is about %.3g s, and the request takes about "
                      "%.3g s; the call's "
                      "deadline leaves %.3g s",
                      wait, run, std::max(0.0, left)));
  late.SetPayload(kTooLate, absl::Cord());
  return late;
}

absl::Status Admission::CheckStart(const Flow& flow, const Work& work,
                                   Clock::time_point submitted,
                                   Clock::time_point now,
                                   Clock::time_point deadline) const {
  const double left = SecondsBetween(now, deadline);
  const double run = EstimateRun(flow, work).value_or(0);
  if (run <= left || run > SecondsBetween(submitted, deadline)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "after a wait of %.3g s the call's deadline leaves %.3g s; the request "
      "takes about %.3g s",
      SecondsBetween(submitted, now), std::max(0.0, left), run));
}

int64_t Admission::running(uint32_t flow) const {
  const FlowState* state = Find(flow);
  return state == nullptr ? 0 : state->running;
}

int64_t Admission::waiting(uint32_t flow) const {
  const FlowState* state = Find(flow);
  return state == nullptr ? 0 : state->waiting;
}

}  // namespace recurve
