#include "server/grpc/health_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/quote.h"
#include "grpc/health/v1/health.pb.h"
#include "server/grpc/proto_message.h"
#include "server/grpc/unary.h"

namespace recurve {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ServingStatus = HealthCheckResponse::ServingStatus;

namespace {

// Minimum number of expired watchers before a clean-up.
constexpr size_t kMinClean = 16;

ServingStatus StatusOf(bool serving) {
  return serving ? HealthCheckResponse::SERVING
                 : HealthCheckResponse::NOT_SERVING;
}

}  // namespace

// One Watch call: reports each change, or only the latest if the client reads
// more slowly.
class HealthService::Watcher : public RpcListener {
 public:
  Watcher(HealthService* service, std::shared_ptr<RpcStream> stream)
      : service_(service), stream_(std::move(stream)) {}

  void OnMessage(std::string message) override {
    HealthCheckRequest request;
    if (!ParseMessage(message, &request)) {
      return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage), {});
    }
    bool serving;
    {
      MutexLock lock(&service_->mu_);
      serving = service_->serving_;
    }
    {
      MutexLock lock(&mu_);
      known_ = service_->Knows(request.service());
      asked_ = true;
      if (!latest_) latest_ = serving;
    }
    stream_->Rest();
    Pump();
  }
  void OnHalfClose() override {
    stream_->Finish(absl::InvalidArgumentError("the request is missing"), {});
  }
  void OnWritten() override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
    }
    Pump();
  }
  void OnDone(const absl::Status&) override {}

  void Tell(bool serving) {
    {
      MutexLock lock(&mu_);
      latest_ = serving;
    }
    Pump();
  }

 private:
  void Pump() {
    HealthCheckResponse response;
    {
      MutexLock lock(&mu_);
      if (!asked_ || writing_ || !latest_) return;
      const ServingStatus status =
          known_ ? StatusOf(*latest_) : HealthCheckResponse::SERVICE_UNKNOWN;
      if (std::exchange(told_, status) == status) return;
      response.set_status(status);
      writing_ = true;
    }
    stream_->Write(response.SerializeAsString());
  }

  HealthService* const service_;
  const std::shared_ptr<RpcStream> stream_;
  Mutex mu_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<bool> latest_ ABSL_GUARDED_BY(mu_);
  std::optional<ServingStatus> told_ ABSL_GUARDED_BY(mu_);
};

HealthService::HealthService(std::set<std::string> services)
    : services_(std::move(services)) {}
HealthService::~HealthService() = default;

void HealthService::SetServing(bool serving) {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    MutexLock lock(&mu_);
    serving_ = serving;
    for (const auto& weak : watchers_) {
      if (auto watcher = weak.lock()) all.push_back(std::move(watcher));
    }
  }
  for (const auto& watcher : all) watcher->Tell(serving);
}

void HealthService::AddMethods(RpcMethods* methods) {
  (*methods)["/grpc.health.v1.Health/Check"] =
      UnaryMethod<HealthCheckRequest, HealthCheckResponse, Anybody>(
          [](const RpcHead&, RpcStream&) { return Anybody(); },
          [this](const Anybody&, const HealthCheckRequest& request)
              -> absl::StatusOr<HealthCheckResponse> {
            if (!Knows(request.service())) {
              return absl::NotFoundError(
                  absl::StrCat("service is ", Quote(request.service()),
                               "; this server has no such service"));
            }
            HealthCheckResponse response;
            MutexLock lock(&mu_);
            response.set_status(StatusOf(serving_));
            return response;
          });
  (*methods)["/grpc.health.v1.Health/Watch"] =
      [this](
          const RpcHead&,
          std::shared_ptr<RpcStream> stream) -> std::shared_ptr<RpcListener> {
    RpcStream& reading = *stream;
    auto watcher = std::make_shared<Watcher>(this, std::move(stream));
    {
      MutexLock lock(&mu_);
      // At each doubling: a scan per watcher would take quadratic time.
      if (watchers_.size() >= next_clean_) {
        watchers_.erase(
            std::remove_if(watchers_.begin(), watchers_.end(),
                           [](const auto& w) { return w.expired(); }),
            watchers_.end());
        next_clean_ = 2 * watchers_.size() + kMinClean;
      }
      watchers_.push_back(watcher);
    }
    reading.Read(kRequestTimeout);
    return watcher;
  };
}

}  // namespace recurve
