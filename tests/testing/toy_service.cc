#include "tests/testing/toy_service.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace recurve {

struct ToyService::State {
  explicit State(std::chrono::milliseconds within) : read_within(within) {}

  const std::chrono::milliseconds read_within;
  Mutex mu;
  int64_t alive ABSL_GUARDED_BY(mu) = 0;
  int64_t begun ABSL_GUARDED_BY(mu) = 0;
  int64_t messages ABSL_GUARDED_BY(mu) = 0;
  int64_t message_bytes ABSL_GUARDED_BY(mu) = 0;
  int64_t written ABSL_GUARDED_BY(mu) = 0;
  std::vector<absl::Status> ended ABSL_GUARDED_BY(mu);
  std::vector<std::weak_ptr<RpcStream>> held ABSL_GUARDED_BY(mu);
};

class ToyService::Call : public RpcListener {
 public:
  Call(std::string kind, std::shared_ptr<State> state,
       std::shared_ptr<RpcStream> stream)
      : kind_(std::move(kind)),
        state_(std::move(state)),
        stream_(std::move(stream)) {
    MutexLock lock(&state_->mu);
    ++state_->alive;
    ++state_->begun;
    if (kind_ == "Hold" || kind_ == "Accept") state_->held.push_back(stream_);
  }
  ~Call() override {
    MutexLock lock(&state_->mu);
    --state_->alive;
  }

  void OnMessage(std::string message) override {
    {
      MutexLock lock(&state_->mu);
      ++state_->messages;
      state_->message_bytes += static_cast<int64_t>(message.size());
    }
    if (kind_ == "Echo") return stream_->Write(message);
    if (kind_ == "Fail") {
      return stream_->Finish(
          absl::InternalError(std::string(std::atoi(message.c_str()), 'x')),
          {});
    }
    if (kind_ != "Fill") return;
    char* rest = nullptr;
    left_ = std::strtoll(message.c_str(), &rest, 10);
    size_ = std::strtoll(rest, nullptr, 10);
    WriteNext();
  }
  void OnHalfClose() override { stream_->Finish(absl::OkStatus(), {}); }
  void OnWritten() override {
    {
      MutexLock lock(&state_->mu);
      ++state_->written;
    }
    if (kind_ == "Echo") return stream_->Read(state_->read_within);
    if (kind_ == "Fill") WriteNext();
  }
  void OnDone(const absl::Status& status) override {
    MutexLock lock(&state_->mu);
    state_->ended.push_back(status);
  }

 private:
  void WriteNext() {
    if (left_ == 0) return stream_->Finish(absl::OkStatus(), {});
    --left_;
    stream_->Write(ToyFill(index_++, size_));
  }

  const std::string kind_;
  const std::shared_ptr<State> state_;
  const std::shared_ptr<RpcStream> stream_;
  int64_t left_ = 0;
  int64_t size_ = 0;
  int64_t index_ = 0;
};

ToyService::ToyService(std::chrono::milliseconds read_within)
    : state_(std::make_shared<State>(read_within)) {}
ToyService::~ToyService() = default;

RpcMethods ToyService::Methods() {
  RpcMethods methods;
  for (const bool known : {false, true}) {
    for (const std::string kind :
         {"Echo", "Fill", "Hold", "Accept", "Refuse", "Fail"}) {
      methods[absl::StrCat(known ? "/known/" : "/strange/", kind)] =
          [known, kind, state = state_](const RpcHead&,
                                        std::shared_ptr<RpcStream> stream)
          -> std::shared_ptr<RpcListener> {
        if (known) stream->Trust();
        if (kind == "Refuse") {
          stream->Finish(absl::ResourceExhaustedError("too much to do"), {});
          return nullptr;
        }
        if (kind == "Accept") stream->Accept();
        RpcStream& reading = *stream;
        auto call = std::make_shared<Call>(kind, state, std::move(stream));
        reading.Read(state->read_within);
        return call;
      };
    }
  }
  return methods;
}

int64_t ToyService::alive() const {
  MutexLock lock(&state_->mu);
  return state_->alive;
}

int64_t ToyService::begun() const {
  MutexLock lock(&state_->mu);
  return state_->begun;
}

int64_t ToyService::messages() const {
  MutexLock lock(&state_->mu);
  return state_->messages;
}

int64_t ToyService::message_bytes() const {
  MutexLock lock(&state_->mu);
  return state_->message_bytes;
}

int64_t ToyService::written() const {
  MutexLock lock(&state_->mu);
  return state_->written;
}

std::vector<absl::Status> ToyService::ended() const {
  MutexLock lock(&state_->mu);
  return state_->ended;
}

void ToyService::FinishHeld(const absl::Status& status) {
  std::vector<std::weak_ptr<RpcStream>> held;
  {
    MutexLock lock(&state_->mu);
    held.swap(state_->held);
  }
  for (const auto& weak : held) {
    if (const auto stream = weak.lock()) stream->Finish(status, {});
  }
}

void ToyService::WriteHeld(const std::string& message) {
  std::vector<std::weak_ptr<RpcStream>> held;
  {
    MutexLock lock(&state_->mu);
    held = state_->held;
  }
  for (const auto& weak : held) {
    if (const auto stream = weak.lock()) stream->Write(message);
  }
}

ToyServer::ToyServer(GrpcServerOptions options,
                     std::chrono::milliseconds read_within)
    : service_(read_within) {
  options.host = "127.0.0.1";
  auto server = GrpcServer::Start(options, service_.Methods());
  RECURVE_CHECK(server.ok());
  server_ = *std::move(server);
}

std::string ToyServer::address() const {
  return absl::StrCat("127.0.0.1:", port());
}

std::string ToyFill(int64_t index, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>('a' + (i + static_cast<size_t>(index)) % 26);
  }
  return text;
}

}  // namespace recurve
