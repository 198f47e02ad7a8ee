// Sends more requests than a server can serve, and says what became of each.
// For tests/e2e/overload.py; bench measures, this checks.
//
// Requests come in an open loop at a rate (Poisson), or a number of streams is
// kept open. There are few different requests; each runs alone first, and
// whatever arrives later of any stream, whole or cut off, is compared with
// that, token by token. Prints one JSON object.
//
// One thread does it all, on gRPC's asynchronous API: sender and server share
// what cores there are, and threads that wake each other for every event would
// cost more than the requests.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "client/lib/generation.h"
#include "client/lib/grpc_status.h"
#include "client/lib/no_proxy.h"
#include "client/lib/recurve_client.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "recurve/v1/inference.grpc.pb.h"

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string server;
  double rate = 0;           // requests a second; 0: `concurrency` decides
  uint32_t concurrency = 0;  // streams kept open; 0: `rate` decides
  double duration = 10;      // seconds in which requests are started
  uint32_t prompt_tokens = 32;
  uint32_t output_tokens = 128;
  uint32_t different = 16;
  double timeout = 120;  // deadline of each try, seconds
  std::string api_key;
  // UNAVAILABLE: send the request again, after a pause. Else it has failed.
  bool retry = false;
  // Start nothing more after the first UNAVAILABLE.
  bool end_when_unavailable = false;
};

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// CPU time of this process, all threads.
double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

struct Request {
  uint32_t kind = 0;  // of Options::different
  int tries = 0;
  Clock::time_point due;
  Clock::time_point sent;
  Clock::time_point first;  // token
  Clock::time_point ended;
  size_t tokens_in_time = 0;
  bool admitted = false;
  absl::Status broken;  // events that made no sense
  absl::Status status;
  Generation generation;

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateEvent>> stream;
  v1::GenerateEvent event;  // being read
  grpc::Status end;
  bool over = false;  // no more events will come
  bool finishing = false;
  int tags = 0;  // operations under way
};

struct Outcome {
  uint64_t started = 0;
  uint64_t completed = 0;
  // Tokens of completed requests that arrived before `duration` was over.
  uint64_t completed_tokens = 0;
  uint64_t tries = 0;
  uint64_t different_tokens =
      0;  // streams that are not, or do not begin, as alone
  // Had an Admitted event, and ended neither OK nor RESOURCE_EXHAUSTED.
  uint64_t admitted_and_lost = 0;
  std::map<std::string, uint64_t> statuses;  // and messages
  std::vector<double> refused_seconds;       // RESOURCE_EXHAUSTED
  std::vector<double> first_token_seconds;
  std::vector<double> lag_seconds;
  size_t most_open = 0;
};

v1::GenerateRequest MakeRequest(uint32_t kind, const Options& options) {
  v1::GenerateRequest request;
  for (uint32_t i = 0; i < options.prompt_tokens; ++i) {
    // Printable bytes: the demo model has them as ids.
    request.mutable_prompt_ids()->add_ids(32 + Philox4x32(7, kind, i)[0] % 95);
  }
  request.mutable_stopping()->set_max_new_tokens(options.output_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  if (kind % 2 == 1) {
    request.mutable_sampling()->set_temperature(0.8f);
    request.mutable_sampling()->set_seed(kind);
  }
  return request;
}

nlohmann::json Percentiles(std::vector<double> values) {
  nlohmann::json result;
  result["count"] = values.size();
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const auto at = [&](double p) {
    return 1000 * values[std::min(values.size() - 1,
                                  static_cast<size_t>(p * values.size()))];
  };
  result["p50_ms"] = at(0.5);
  result["p99_ms"] = at(0.99);
  result["max_ms"] = 1000 * values.back();
  return result;
}

class Load {
 public:
  Load(RecurveClient* client, const Options& options)
      : client_(*client), options_(options) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // each try is to be seen
    SetProxyUse(options.server, &arguments);
    stub_ = v1::Inference::NewStub(grpc::CreateCustomChannel(
        options.server, grpc::InsecureChannelCredentials(), arguments));
  }
  ~Load() {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::Status RunAlone() {
    for (uint32_t kind = 0; kind < options_.different; ++kind) {
      requests_.push_back(MakeRequest(kind, options_));
      Generation generation;
      absl::Status bad;
      absl::Status status = client_.Generate(
          requests_.back(), [&](const v1::GenerateEvent& event) {
            bad.Update(generation.Add(event));
            return true;
          });
      status.Update(bad);
      if (!status.ok()) return status;
      alone_.push_back(generation.token_ids);
    }
    return absl::OkStatus();
  }

  Outcome Run() {
    begin_ = Clock::now();
    end_ = begin_ + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(options_.duration));
    Clock::time_point next = begin_;
    while (true) {
      const auto now = Clock::now();
      const bool starting = now < end_ && !over_;
      if (starting && options_.rate > 0) {
        while (next <= Clock::now() && next < end_) {
          Add(next);
          next += NextGap();
        }
      } else if (starting) {
        while (open_ + waiting_.size() < options_.concurrency) Add(now);
      }
      for (size_t i = 0; i < waiting_.size();) {
        if (waiting_[i]->due > Clock::now()) {
          ++i;
          continue;
        }
        Send(std::move(waiting_[i]));
        waiting_.erase(waiting_.begin() + i);
      }
      if (!starting && open_ == 0 && waiting_.empty())
        return std::move(outcome_);
      auto wait = Clock::duration(std::chrono::milliseconds(5));
      if (starting && options_.rate > 0) {
        wait = std::clamp(next - Clock::now(), Clock::duration::zero(), wait);
      }
      Collect(wait);
    }
  }

 private:
  Clock::duration NextGap() {
    const double u = (Philox4x32(11, gaps_++, 0)[0] + 1.0) /
                     4294967297.0;  // above 0, below 1
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(-std::log(u) / options_.rate));
  }

  void Add(Clock::time_point due) {
    auto request = std::make_unique<Request>();
    request->kind =
        static_cast<uint32_t>(outcome_.started++ % options_.different);
    request->due = due;
    Send(std::move(request));
  }

  void Send(std::unique_ptr<Request> owned) {
    Request* request = owned.get();
    request->sent = Clock::now();
    outcome_.lag_seconds.push_back(Seconds(request->sent - request->due));
    ++request->tries;
    ++outcome_.tries;
    ++open_;
    outcome_.most_open = std::max(outcome_.most_open, open_);
    sent_[request] = std::move(owned);
    if (!options_.api_key.empty()) {
      request->context.AddMetadata("authorization",
                                   "Bearer " + options_.api_key);
    }
    request->context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::microseconds(
            static_cast<int64_t>(1e6 * options_.timeout)));
    request->stream = stub_->PrepareAsyncGenerate(
        &request->context, requests_[request->kind], &queue_);
    request->tags = 2;
    request->stream->StartCall(request);
    request->stream->Read(&request->event, request);
  }

  // Handles received events; waits for them up to `wait`.
  void Collect(Clock::duration wait) {
    auto until = std::chrono::system_clock::now() + wait;
    void* tag;
    bool ok;
    while (queue_.AsyncNext(&tag, &ok, until) ==
           grpc::CompletionQueue::GOT_EVENT) {
      OnEvent(static_cast<Request*>(tag), ok);
      until = {};  // long ago; gRPC takes times before 1970 for "never"
    }
  }

  // The call has begun, an event has come, there are no more (not ok), or the
  // status has.
  void OnEvent(Request* request, bool ok) {
    --request->tags;
    if (request->finishing) {
      if (request->tags > 0) return;
      request->status = FromGrpcStatus(request->end);
      request->ended = Clock::now();
      Judge(*request);
      sent_.erase(request);
      --open_;
      return;
    }
    if (!ok) request->over = true;
    if (request->over) {
      if (request->tags > 0) return;
      request->finishing = true;
      request->tags = 1;
      request->stream->Finish(&request->end, request);
      return;
    }
    // The order of StartCall and the first Read is unspecified: a received
    // event is not empty.
    if (request->event.event_case() == v1::GenerateEvent::EVENT_NOT_SET) return;
    TakeEvent(request);
    request->event.Clear();
    ++request->tags;
    request->stream->Read(&request->event, request);
  }

  void TakeEvent(Request* request) {
    const v1::GenerateEvent& event = request->event;
    if (event.has_admitted()) request->admitted = true;
    if (event.has_tokens() && request->generation.token_ids.empty()) {
      request->first = Clock::now();
    }
    request->broken.Update(request->generation.Add(event));
    if (Clock::now() <= end_) {
      request->tokens_in_time = request->generation.token_ids.size();
    }
  }

  void Judge(const Request& r) {
    const std::vector<uint32_t>& alone = alone_[r.kind];
    const std::vector<uint32_t>& got = r.generation.token_ids;
    const bool begins = got.size() <= alone.size() &&
                        std::equal(got.begin(), got.end(), alone.begin());
    const bool whole = got.size() == alone.size();
    if (!begins || !r.broken.ok() || (r.status.ok() && !whole)) {
      ++outcome_.different_tokens;
    }
    if (r.status.ok()) {
      ++outcome_.statuses["OK"];
      ++outcome_.completed;
      outcome_.completed_tokens += r.tokens_in_time;
      outcome_.first_token_seconds.push_back(Seconds(r.first - r.due));
      return;
    }
    ++outcome_.statuses[absl::StrCat(absl::StatusCodeToString(r.status.code()),
                                     ": ", r.status.message())];
    if (r.status.code() == absl::StatusCode::kResourceExhausted) {
      outcome_.refused_seconds.push_back(Seconds(r.ended - r.sent));
      return;
    }
    if (r.admitted) ++outcome_.admitted_and_lost;
    if (r.status.code() != absl::StatusCode::kUnavailable) return;
    if (options_.end_when_unavailable) over_ = true;
    if (!options_.retry) return;
    auto again = std::make_unique<Request>();
    again->kind = r.kind;
    again->tries = r.tries;
    again->due = Clock::now() +
                 std::chrono::milliseconds(100 << std::min(r.tries - 1, 4));
    waiting_.push_back(std::move(again));
  }

  RecurveClient& client_;
  const Options options_;
  std::vector<v1::GenerateRequest> requests_;
  std::vector<std::vector<uint32_t>> alone_;
  std::map<Request*, std::unique_ptr<Request>> sent_;
  std::deque<std::unique_ptr<Request>> waiting_;  // to be sent again
  Clock::time_point begin_;
  Clock::time_point end_;  // of the time in which requests are started
  size_t open_ = 0;
  uint64_t gaps_ = 0;
  bool over_ = false;
  Outcome outcome_;

  std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::CompletionQueue queue_;
};

int Main(int argc, char** argv) {
  // Debian's Abseil looks for deadlocks at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Options options;
  CLI::App app("Sends more than a server can serve");
  app.add_option("--server", options.server)->required();
  app.add_option("--rate", options.rate);
  app.add_option("--concurrency", options.concurrency);
  app.add_option("--duration", options.duration);
  app.add_option("--prompt-tokens", options.prompt_tokens);
  app.add_option("--output-tokens", options.output_tokens);
  app.add_option("--different", options.different);
  app.add_option("--timeout", options.timeout);
  app.add_option("--api-key", options.api_key);
  app.add_flag("--retry", options.retry);
  app.add_flag("--end-when-unavailable", options.end_when_unavailable);
  CLI11_PARSE(app, argc, argv);
  if ((options.rate > 0) == (options.concurrency > 0)) {
    std::fprintf(stderr, "exactly one of --rate and --concurrency\n");
    return 2;
  }

  auto client =
      RecurveClient::Create(options.server, {.api_key = options.api_key});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  Load load(client->get(), options);
  if (absl::Status status = load.RunAlone(); !status.ok()) {
    std::fprintf(stderr, "alone: %s\n", status.ToString().c_str());
    return 1;
  }
  std::fprintf(stderr, "ready\n");
  const double cpu_before = CpuSeconds();
  const Outcome outcome = load.Run();
  nlohmann::json json;
  json["cpu_seconds"] = CpuSeconds() - cpu_before;
  json["started"] = outcome.started;
  json["tries"] = outcome.tries;
  json["completed"] = outcome.completed;
  json["goodput_tokens_per_second"] =
      outcome.completed_tokens / options.duration;
  json["different_tokens"] = outcome.different_tokens;
  json["admitted_and_lost"] = outcome.admitted_and_lost;
  json["most_open"] = outcome.most_open;
  json["statuses"] = outcome.statuses;
  json["refused"] = Percentiles(outcome.refused_seconds);
  json["first_token"] = Percentiles(outcome.first_token_seconds);
  json["send_lag"] = Percentiles(outcome.lag_seconds);
  std::printf("%s\n", json.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) { return recurve::Main(argc, argv); }
