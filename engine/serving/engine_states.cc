// States of sequences: taken, made, and given back (step thread, where nothing
// else is said).

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/serving/engine.h"
#include "engine/serving/snapshot_policy.h"

namespace recurve {
namespace {

absl::Status NoRoom() {
  return absl::ResourceExhaustedError(
      "no host memory is free for the state (--prefix-cache-bytes); release "
      "other states");
}

}  // namespace

absl::Status Engine::CheckStates() const {
  if (states_.max_bytes() > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      prefix_cache_.enabled()
          ? "this server keeps no states: --state-bytes is 0"
          : "this server keeps no states: it has no prefix cache, whose memory "
            "they share (--prefix-cache-bytes)");
}

// Called on any thread, like MakeState and Own's deleter.
void Engine::TakeState(uint32_t flow, uint64_t id, std::optional<int64_t> at,
                       StateDone done) {
  if (absl::Status status = CheckStates(); !status.ok()) return done(status);
  {
    MutexLock lock(&mu_);
    if (!stop_) {
      inbox_.emplace_back(StateRequest{flow, id, at, std::move(done)});
      done = nullptr;
    }
  }
  if (done) return done(absl::UnavailableError("the server is shutting down"));
  wake_.NotifyAll();
}

void Engine::MakeState(SequenceState state, int64_t computed_tokens,
                       StateDone done) {
  if (absl::Status status = CheckStates(); !status.ok()) return done(status);
  {
    MutexLock lock(&mu_);
    if (!stop_) {
      inbox_.emplace_back(
          StateRoom{std::move(state), computed_tokens, std::move(done)});
      done = nullptr;
    }
  }
  if (done) return done(absl::UnavailableError("the server is shutting down"));
  wake_.NotifyAll();
}

SequenceStatePtr Engine::Own(SequenceState state) {
  return {new SequenceState(std::move(state)),
          [this](const SequenceState* dropped) {
            Post(DroppedState{std::unique_ptr<const SequenceState>(dropped)});
          }};
}

// Called on any thread.
absl::StatusOr<SequenceStatePtr> Engine::CutState(const SequenceState& state,
                                                  int64_t tokens,
                                                  absl::string_view field) {
  if (tokens < 1 || tokens > state.num_tokens()) {
    return absl::OutOfRangeError(
        absl::StrCat(field, " is ", tokens, "; expected 1 to ",
                     state.num_tokens(), ", the tokens of the state"));
  }
  SequenceState cut;
  cut.tokens.assign(state.tokens.begin(), state.tokens.begin() + tokens);
  cut.kinds.assign(state.kinds.begin(), state.kinds.begin() + tokens);
  cut.imported = state.imported;
  if (state.computed.tokens < tokens) {
    cut.computed = state.computed;
  } else if (cache_spec_.slot_bytes == 0 && tokens > 1 &&
             cut.kinds.back() == TokenKind::kStep) {
    // Without recurrent state, a part of what is computed is state, too. A part
    // of a prompt may have been computed as another prompt would be.
    cut.computed = {state.computed.snapshot, tokens - 1};
  }
  return Own(std::move(cut));
}

absl::StatusOr<std::vector<absl::Span<char>>> Engine::BlocksOf(
    const SequenceState& state) const {
  if (state.computed.empty()) return std::vector<absl::Span<char>>();
  return cache_.HostBlocks(state.computed);
}

void Engine::PlanPlaces(Sequence& sequence) {
  if (!prefix_cache_.enabled() || sequence.num_computed() == 0 ||
      sequence.imported()) {
    return;
  }
  const int64_t tokens = sequence.num_tokens();
  const bool has_state = cache_spec_.slot_bytes > 0;
  if (sequence.from_state() && sequence.places.empty()) {
    sequence.places =
        PlanSnapshots({.tokens = tokens,
                       .cached = sequence.num_computed(),
                       .chunk_multiple = runner_->info().chunk_multiple,
                       .has_state = has_state,
                       .named = sequence.options().snapshot_at});
    return;
  }
  // A command that only appends is followed by one that draws, maybe many
  // times: from here the row is computed again at little cost.
  if (sequence.command_work().generate > 0 ||
      sequence.kind(tokens - 1) == TokenKind::kStep) {
    return;
  }
  const int64_t most = has_state ? tokens - 1 : tokens;
  const int64_t place = most - most % runner_->info().chunk_multiple;
  if (place > sequence.num_computed()) sequence.places.push_back(place);
}

absl::StatusOr<SequenceStatePtr> Engine::StateOf(const StateRequest& request) {
  const auto found = sequences_.find(request.id);
  if (found == sequences_.end() ||
      found->second->options().flow.id != request.flow) {
    return absl::NotFoundError("no request with this id is running or waiting");
  }
  Sequence& sequence = *found->second;
  if (sequence.command_active() || sequence.num_tokens() == 0) {
    return absl::FailedPreconditionError(
        "the sequence is in the middle of a command; take its state after the "
        "response that is done");
  }
  if (!request.at || *request.at == sequence.num_tokens()) {
    return StateOfEnd(sequence);
  }
  auto kept = sequence.StateAt(*request.at);
  if (!kept) {
    return ValidateKept(request.at, /*keep=*/false, sequence.KeptTokens(),
                        "at");
  }
  kept->first.computed = std::move(kept->second);
  FindBefore(kept->first);
  return Own(std::move(kept->first));
}

absl::StatusOr<SequenceStatePtr> Engine::StateOfEnd(Sequence& sequence) {
  SequenceState state = sequence.State();
  const int64_t tokens = sequence.num_tokens();
  const int64_t computed = sequence.num_computed();
  const SnapshotPrefix& base = sequence.base;
  if (computed == 0) return Own(std::move(state));  // its memory was taken
  // From here the last row is at most a chunk away.
  const int64_t near =
      tokens - std::max<int64_t>(runner_->info().chunk_multiple, 1);
  if (!base.empty() && base.tokens <= computed &&
      (base.tokens == computed ||
       (computed == tokens && sequence.last_row == nullptr &&
        base.tokens >= near))) {
    state.computed = base;
    if (base.tokens == tokens) state.before = sequence.before;
  } else if (!sequence.lease) {
    state.computed = sequence.saved;
  } else {
    RECURVE_ASSIGN_OR_RETURN(const bool taken,
                             TakeBase(sequence, computed, /*found=*/false));
    if (taken) {
      state.computed = sequence.base;
      if (computed == tokens) state.before = sequence.before;
    } else if (!base.empty() && computed == tokens && base.tokens >= near) {
      state.computed = base;
    } else {
      return NoRoom();
    }
  }
  if (state.computed.tokens == tokens) state.last_row = sequence.last_row;
  FindBefore(state);
  return Own(std::move(state));
}

void Engine::FindBefore(SequenceState& state) const {
  const int64_t tokens = state.num_tokens();
  if (cache_spec_.slot_bytes > 0 || state.computed.tokens < tokens) return;
  const int64_t multiple = runner_->info().chunk_multiple;
  const int64_t most = state.kinds.back() == TokenKind::kStep
                           ? tokens - 1
                           : tokens - 1 - (tokens - 1) % multiple;
  state.before = most > 0 ? SnapshotPrefix{state.computed.snapshot, most}
                          : SnapshotPrefix{};
}

absl::StatusOr<SequenceStatePtr> Engine::RoomFor(StateRoom& room) {
  if (room.computed_tokens > 0) {
    RECURVE_ASSIGN_OR_RETURN(
        SnapshotPtr blank,
        prefix_cache_.Blank(room.computed_tokens, saved_blocks_));
    if (blank == nullptr) return NoRoom();
    room.state.computed = {std::move(blank), room.computed_tokens};
  }
  FindBefore(room.state);
  room.state.imported = true;
  return Own(std::move(room.state));
}

}  // namespace recurve
