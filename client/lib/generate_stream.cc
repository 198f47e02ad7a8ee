#include "client/lib/generate_stream.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "client/lib/grpc_status.h"

namespace recurve {

class GenerateStream::Reactor final
    : public grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  Reactor(const v1::GenerateRequest& request, Callbacks callbacks)
      : request_(request), callbacks_(std::move(callbacks)) {}

  void Start(v1::Inference::StubInterface* stub, absl::Duration timeout,
             const std::string& authorization) {
    if (!authorization.empty()) {
      context_.AddMetadata("authorization", authorization);
    }
    if (timeout < absl::InfiniteDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    }
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void Wait() {
    MutexLock lock(&mu_);
    while (!done_) finished_.Wait(&mu_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // the end of the stream: OnDone follows
    if (!callbacks_.on_event(event_)) context_.TryCancel();
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    callbacks_.on_done(FromGrpcStatus(status));
    // A waiting thread may destroy this object as soon as the lock is free. It
    // is not destroyed here: context_ may hold the last reference to the
    // channel, and a channel's destructor joins the thread that this runs on.
    MutexLock lock(&mu_);
    done_ = true;
    finished_.NotifyAll();
  }

 private:
  grpc::ClientContext context_;
  const v1::GenerateRequest request_;
  const Callbacks callbacks_;
  v1::GenerateEvent event_;

  Mutex mu_;
  CondVar finished_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

GenerateStream::GenerateStream(v1::Inference::StubInterface* stub,
                               const v1::GenerateRequest& request,
                               Callbacks callbacks, absl::Duration timeout,
                               const std::string& authorization) {
  RECURVE_CHECK(callbacks.on_event != nullptr && callbacks.on_done != nullptr);
  reactor_ = std::make_unique<Reactor>(request, std::move(callbacks));
  reactor_->Start(stub, timeout, authorization);
}

GenerateStream::~GenerateStream() {
  Cancel();
  Wait();
}

void GenerateStream::Cancel() { reactor_->Cancel(); }

void GenerateStream::Wait() { reactor_->Wait(); }

}  // namespace recurve
