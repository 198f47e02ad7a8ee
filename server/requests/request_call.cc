#include "server/requests/request_call.h"

#include <utility>

#include "base/status_macros.h"
#include "server/requests/refusal.h"

namespace recurve {

RequestCall::RequestCall(const CallEnvironment& environment)
    : environment_(environment) {
  environment_.open_streams->fetch_add(1);
}

RequestCall::~RequestCall() { environment_.open_streams->fetch_sub(1); }

void RequestCall::SetParts(size_t count) {
  MutexLock lock(&mu_);
  parts_.resize(count);
}

absl::Status RequestCall::Authenticate(
    absl::Span<const std::string> authorization, absl::string_view entry) {
  if (environment_.tenants == nullptr) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(
      tenant_, environment_.tenants->Authenticate(authorization, entry));
  return absl::OkStatus();
}

absl::Status RequestCall::CheckAccepts() const {
  return environment_.engine->CheckAccepts(flow());
}

absl::Status RequestCall::OpenStreams() {
  if (tenant_ == nullptr || std::exchange(has_streams_, true)) {
    return absl::OkStatus();
  }
  MutexLock lock(&mu_);
  std::chrono::milliseconds retry_after = environment_.retry_pushback;
  if (absl::Status status = tenant_->OpenStreams(
          static_cast<int64_t>(parts_.size()), &retry_after);
      !status.ok()) {
    retry_after_ = retry_after;
    return status;
  }
  for (Part& part : parts_) part.ticket = StreamTicket(tenant_);
  return absl::OkStatus();
}

absl::Status RequestCall::Widen(size_t count) {
  MutexLock lock(&mu_);
  const size_t before = parts_.size();
  if (tenant_ != nullptr) {
    std::chrono::milliseconds retry_after = environment_.retry_pushback;
    if (absl::Status status =
            tenant_->OpenStreams(static_cast<int64_t>(count - before),
                                 &retry_after, static_cast<int64_t>(before));
        !status.ok()) {
      retry_after_ = retry_after;
      return status;
    }
  }
  parts_.resize(count);
  for (size_t i = before; i < count; ++i) {
    if (tenant_ != nullptr) parts_[i].ticket = StreamTicket(tenant_);
  }
  return absl::OkStatus();
}

void RequestCall::Encode(int64_t bytes,
                         const std::function<void(const absl::Status&)>& next) {
  if (bytes <= EncodeThreads::kShortBytes) return next(absl::OkStatus());
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (AllEnded()) return;
    status = left_;
    if (status.ok()) {
      status = environment_.encode_threads->Add(
          this, flow(), bytes, [self = shared_from_this(), next] {
            bool running;
            absl::Status left;
            {
              MutexLock lock(&self->mu_);
              if (self->AllEnded()) return;
              running = self->parts_[0].id.has_value();
              left = self->left_;
            }
            // A further command of a sequence needs no place.
            if (left.ok() && !running) left = self->CheckAccepts();
            next(left);
          });
      if (!status.ok() && parts_[0].id) {
        retry_after_ = environment_.retry_pushback;
      }
    }
  }
  if (!status.ok()) next(status);
}

absl::StatusOr<SequenceStatePtr> RequestCall::FindState(
    const std::string& key, std::optional<uint64_t>* seed, std::string* id) {
  if (key.empty()) return nullptr;
  RECURVE_RETURN_IF_ERROR(environment_.engine->CheckStates());
  RECURVE_ASSIGN_OR_RETURN(StateStore::Found found,
                           environment_.engine->states().Use(flow().id, key));
  if (!*seed) *seed = found.info.seed;
  if (id != nullptr) *id = found.info.id;
  return std::move(found.state);
}

Engine::Submission RequestCall::MakeSubmission(
    GenerateInput input, FieldNames names, std::shared_ptr<EventSink> sink,
    std::optional<std::chrono::steady_clock::time_point> deadline) const {
  Engine::Submission submission;
  submission.options = std::move(input.options);
  submission.options.flow = flow();
  submission.command = std::move(input.command);
  submission.sink = std::move(sink);
  submission.deadline = deadline;
  submission.names = std::move(names);
  submission.prompt_name = std::move(input.prompt_name);
  submission.from = std::move(input.from);
  submission.sample = input.sample;
  return submission;
}

absl::StatusOr<std::vector<uint64_t>> RequestCall::Submit(
    std::vector<Engine::Submission> submissions,
    absl::FunctionRef<absl::Status(absl::Span<const Engine::Submission>)>
        check) {
  RECURVE_ASSIGN_OR_RETURN(
      std::vector<uint64_t> ids,
      environment_.engine->SubmitAll(
          std::move(submissions),
          [&](absl::Span<const Engine::Submission> valid) -> absl::Status {
            RECURVE_RETURN_IF_ERROR(check(valid));
            return Approve(valid);
          }));
  absl::Status left;
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < ids.size(); ++i) parts_[i].id = ids[i];
    left = left_;
    // A part that has failed by now could not end those without an id.
    for (const Part& part : parts_) {
      if (left.ok() && part.end && !part.end->ok()) left = *part.end;
    }
    if (!over_) {
      accepted_ = true;
      environment_.accepted_streams->fetch_add(1);
    }
  }
  if (!left.ok()) CancelAll(left);
  return ids;
}

absl::Status RequestCall::Approve(
    absl::Span<const Engine::Submission> submissions) {
  {
    MutexLock lock(&mu_);
    if (!left_.ok()) return left_;
  }
  if (tenant_ == nullptr) return absl::OkStatus();
  for (const Engine::Submission& submission : submissions) {
    RECURVE_RETURN_IF_ERROR(
        tenant_->CheckPriority(submission.options.priority));
  }
  RECURVE_RETURN_IF_ERROR(OpenStreams());
  MutexLock lock(&mu_);
  std::vector<StreamTicket*> tickets;
  std::vector<StreamTicket::Cost> costs;
  for (size_t i = 0; i < submissions.size(); ++i) {
    const Command& command = submissions[i].command;
    auto append = static_cast<int64_t>(command.append.size());
    if (const SequenceStatePtr& from = submissions[i].from; from != nullptr) {
      // What is not computed of it is, as a prompt.
      const int64_t computed = from->start(command).tokens;
      append += from->num_tokens() - computed;
      parts_[i].ticket.StartFrom(computed);
    } else if (submissions[i].sample && environment_.engine->shares_prompts()) {
      // The prompt is computed, and charged, once; each has pages of its own.
      parts_[i].ticket.StartFrom(std::exchange(append, 0));
    }
    tickets.push_back(&parts_[i].ticket);
    costs.push_back({append, command.generate});
  }
  std::chrono::milliseconds retry_after = environment_.retry_pushback;
  absl::Status status = StreamTicket::ChargeAll(tickets, costs, &retry_after);
  if (absl::IsResourceExhausted(status)) retry_after_ = retry_after;
  return status;
}

std::optional<std::chrono::milliseconds> RequestCall::Refused(
    const absl::Status& status) {
  std::optional<std::chrono::milliseconds> by_quota;
  {
    MutexLock lock(&mu_);
    by_quota = retry_after_;
    if (!by_quota) retry_after_ = environment_.retry_pushback;
    for (Part& part : parts_) part.ticket.Refund();
    CloseTickets();
  }
  // A Decode call closed before it sent anything is no refusal, nor is a
  // request whose client left while its text waited to be encoded.
  if (!status.ok() && !absl::IsCancelled(status) &&
      !absl::IsDeadlineExceeded(status)) {
    environment_.metrics->OnRefused(
        RefusalReasonOf(status, by_quota.has_value(), *environment_.engine));
  }
  return by_quota;
}

absl::Status RequestCall::Charge(Part& part, const Command& command) {
  MutexLock lock(&mu_);
  std::chrono::milliseconds retry_after{0};
  absl::Status status =
      part.ticket.Charge(static_cast<int64_t>(command.append.size()),
                         command.generate, &retry_after);
  if (!status.ok()) retry_after_ = retry_after;
  return status;
}

bool RequestCall::HasRoom(Part& part, int64_t tokens, int64_t bytes) {
  part.stalled = tokens >= environment_.max_buffered_tokens ||
                 bytes >= environment_.max_buffered_bytes;
  return !part.stalled;
}

bool RequestCall::EndPart(Part& part, absl::Status status) {
  MutexLock lock(&mu_);
  // If a quota, or missing memory for logits, ended the sequence, the client
  // gets the error.
  const bool unread = write_in_flight_ && part.stalled &&
                      absl::IsResourceExhausted(status) && !retry_after_;
  part.end = std::move(status);
  return unread;
}

void RequestCall::GiveReaderTime() {
  std::vector<uint64_t> behind;
  {
    MutexLock lock(&mu_);
    for (const Part& part : parts_) {
      if (part.stalled && part.id) behind.push_back(*part.id);
    }
  }
  for (const uint64_t id : behind) environment_.engine->GiveReaderTime(id);
}

void RequestCall::Leave(const absl::Status& status) {
  const absl::Status why =
      status.ok() ? absl::CancelledError("the answer is over") : status;
  // Not encoded, the text never will be.
  const bool waited = environment_.encode_threads->Remove(this);
  {
    MutexLock lock(&mu_);
    over_ = true;
    left_ = why;
    if (std::exchange(accepted_, false)) {
      environment_.accepted_streams->fetch_sub(1);
    }
    for (Part& part : parts_) {
      if (part.id || waited) part.ticket.Close();
    }
  }
  CancelAll(why);
}

void RequestCall::CancelAll(const absl::Status& status) {
  std::vector<uint64_t> running;
  {
    MutexLock lock(&mu_);
    for (const Part& part : parts_) {
      if (part.id && !part.end) running.push_back(*part.id);
    }
  }
  for (const uint64_t id : running) environment_.engine->Cancel(id, status);
}

void RequestCall::CloseTickets() {
  for (Part& part : parts_) part.ticket.Close();
}

bool RequestCall::AllEnded() const {
  for (const Part& part : parts_) {
    if (!part.end) return false;
  }
  return true;
}

}  // namespace recurve
