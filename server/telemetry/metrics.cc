#include "server/telemetry/metrics.h"

#include <algorithm>
#include <array>
#include <string>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace recurve {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

using Buckets = Histogram::BucketBoundaries;

// In seconds. A request lasts from milliseconds to minutes, a step from tens of
// microseconds to seconds.
Buckets RequestBuckets() {
  return {0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
          2,     5,     10,   20,   50,   100, 200, 500};
}
Buckets StepBuckets() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
          0.05,   0.1,    0.2,    0.5,   1,     2,     5};
}
Buckets PowersOfTwo(double last) {
  Buckets buckets;
  for (double bound = 1; bound <= last; bound *= 2) buckets.push_back(bound);
  return buckets;
}
Buckets SequenceBuckets() { return PowersOfTwo(1024); }
// A quantile cannot exceed the last bound, and a step on a GPU may have 65535
// tokens.
Buckets TokenBuckets() { return PowersOfTwo(65536); }

Counter& MakeCounter(Registry& registry, const std::string& name,
                     const std::string& help) {
  return BuildCounter()
      .Name("recurve_" + name)
      .Help(help)
      .Register(registry)
      .Add({});
}

Gauge& MakeGauge(Registry& registry, const std::string& name,
                 const std::string& help,
                 const prometheus::Labels& labels = {}) {
  return BuildGauge()
      .Name("recurve_" + name)
      .Help(help)
      .Register(registry)
      .Add(labels);
}

Histogram& MakeHistogram(Registry& registry, const std::string& name,
                         const std::string& help, const Buckets& buckets) {
  return BuildHistogram()
      .Name("recurve_" + name)
      .Help(help)
      .Register(registry)
      .Add({}, buckets);
}

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kStopString:
      return "stop_string";
  }
  return "unknown";
}

const char* MissName(CacheMiss miss) {
  switch (miss) {
    case CacheMiss::kNone:
      return "none";
    case CacheMiss::kUnknown:
      return "unknown";
    case CacheMiss::kDiverged:
      return "diverged";
    case CacheMiss::kEvicted:
      return "evicted";
    case CacheMiss::kShort:
      return "short";
    case CacheMiss::kDisabled:
      return "disabled";
  }
  return "unknown";
}

const char* ReasonName(RefusalReason reason) {
  switch (reason) {
    case RefusalReason::kQueueFull:
      return "queue_full";
    case RefusalReason::kDeadline:
      return "deadline";
    case RefusalReason::kQuota:
      return "quota";
    case RefusalReason::kDraining:
      return "draining";
    case RefusalReason::kDeviceFailed:
      return "device_failed";
    case RefusalReason::kUnauthenticated:
      return "unauthenticated";
    case RefusalReason::kInvalid:
      return "invalid";
    case RefusalReason::kInternal:
      return "internal";
  }
  return "unknown";
}

// Raises a counter to a total kept elsewhere.
template <typename T>
void RaiseTo(Counter& counter, T total) {
  const double increase = static_cast<double>(total) - counter.Value();
  if (increase > 0) counter.Increment(increase);
}

double Fraction(int64_t used, int64_t total) {
  return total > 0 ? static_cast<double>(used) / static_cast<double>(total)
                   : 0.0;
}

}  // namespace

struct Metrics::Families {
  std::shared_ptr<Registry> registry = std::make_shared<Registry>();
  Registry& r = *registry;

  Gauge& serving =
      MakeGauge(r, "serving", "1 while health is SERVING, 0 while it is not.");
  prometheus::Family<Gauge>& build =
      BuildGauge()
          .Name("recurve_build_info")
          .Help("1; what the server is, in its labels.")
          .Register(r);
  Gauge& running =
      MakeGauge(r, "num_requests_running", "Sequences that hold memory.");
  Gauge& waiting =
      MakeGauge(r, "num_requests_waiting", "Sequences that wait for memory.");
  Gauge& usage =
      MakeGauge(r, "kv_cache_usage_perc",
                "Used part of the state slots or of the KV pages, whichever is "
                "more; 1 is full.");
  Gauge& slots_used = MakeGauge(r, "state_slots", "Recurrent-state slots.",
                                {{"state", "used"}});
  Gauge& slots_total = MakeGauge(r, "state_slots", "Recurrent-state slots.",
                                 {{"state", "total"}});
  Gauge& pages_used =
      MakeGauge(r, "tpa_pages", "Pages of the KV cache.", {{"state", "used"}});
  Gauge& pages_total =
      MakeGauge(r, "tpa_pages", "Pages of the KV cache.", {{"state", "total"}});
  Gauge& state_bytes = MakeGauge(
      r, "state_bytes", "Memory of all recurrent-state slots, in bytes.",
      {{"tier", "device"}});

  Counter& prompt_tokens =
      MakeCounter(r, "prompt_tokens_total", "Prompt tokens accepted.");
  Counter& generation_tokens =
      MakeCounter(r, "generation_tokens_total", "Tokens generated.");
  Counter& preemptions =
      MakeCounter(r, "num_preemptions_total",
                  "Sequences that lost their memory to others.");
  Counter& saves = MakeCounter(r, "preemption_saves_total",
                               "Preempted sequences saved in host memory.");
  Counter& restores =
      MakeCounter(r, "preemption_restores_total",
                  "Saved sequences that came back from host memory.");
  Counter& recomputes = MakeCounter(
      r, "preemption_recomputes_total",
      "Preempted sequences for which host memory had no room: what they had "
      "computed is computed again.");
  Counter& device_idle = MakeCounter(
      r, "device_idle_seconds_total",
      "Time between two steps in which no kernel of a step ran on the GPU "
      "though there was something to run; 0 on the CPU.");
  Gauge& swap_used = MakeGauge(
      r, "swap_bytes", "Host memory that preempted sequences are saved in.",
      {{"state", "used"}});
  Gauge& swap_total = MakeGauge(
      r, "swap_bytes", "Host memory that preempted sequences are saved in.",
      {{"state", "total"}});
  Counter& cached_prompt_tokens =
      MakeCounter(r, "prefix_cache_hit_tokens_total",
                  "Prompt tokens whose state was taken from the prefix cache.");
  prometheus::Family<Counter>& cache_prompts =
      BuildCounter()
          .Name("recurve_prefix_cache_prompts_total")
          .Help(
              "First commands that ran to their end, by why not all of the "
              "prompt was in the prefix cache; none: all was that could be.")
          .Register(r);
  std::array<Counter*, kNumCacheMisses> cache_prompts_by_miss = {};
  Counter& snapshots_taken = MakeCounter(r, "prefix_cache_snapshots_total",
                                         "Snapshots taken of prompts.");
  Counter& snapshot_evictions = MakeCounter(r, "prefix_cache_evictions_total",
                                            "Snapshots that had to make room.");
  Gauge& prefix_cache_used =
      MakeGauge(r, "prefix_cache_bytes",
                "Host memory for snapshots of prompts.", {{"state", "used"}});
  Gauge& prefix_cache_total =
      MakeGauge(r, "prefix_cache_bytes",
                "Host memory for snapshots of prompts.", {{"state", "total"}});
  Gauge& states =
      MakeGauge(r, "states", "States of sequences that clients keep.");
  Gauge& state_bytes_used =
      MakeGauge(r, "state_bytes", "Memory for states that clients keep.",
                {{"state", "used"}});
  Gauge& state_bytes_total =
      MakeGauge(r, "state_bytes", "Memory for states that clients keep.",
                {{"state", "total"}});
  prometheus::Family<Counter>& success =
      BuildCounter()
          .Name("recurve_request_success_total")
          .Help("Commands that ran to their end, by reason.")
          .Register(r);
  prometheus::Family<Counter>& failure =
      BuildCounter()
          .Name("recurve_request_failure_total")
          .Help("Accepted sequences that ended with an error, by status.")
          .Register(r);
  prometheus::Family<Counter>& refused =
      BuildCounter()
          .Name("recurve_requests_refused_total")
          .Help("Requests refused before they were accepted, by reason.")
          .Register(r);
  prometheus::Family<Counter>& tenant_admitted =
      BuildCounter()
          .Name("recurve_tenant_requests_admitted_total")
          .Help("Streams that a tenant's quotas let in.")
          .Register(r);
  prometheus::Family<Counter>& tenant_refused =
      BuildCounter()
          .Name("recurve_tenant_requests_refused_total")
          .Help("What was refused to a tenant, by reason.")
          .Register(r);
  prometheus::Family<Gauge>& tenant_streams =
      BuildGauge()
          .Name("recurve_tenant_open_streams")
          .Help("Streams that a tenant has open.")
          .Register(r);
  prometheus::Family<Gauge>& tls_expiry =
      BuildGauge()
          .Name("recurve_tls_certificate_expiry_timestamp_seconds")
          .Help(
              "When the first certificate of a TLS file expires, in seconds "
              "since 1970.")
          .Register(r);
  prometheus::Family<Gauge>& tenant_pages =
      BuildGauge()
          .Name("recurve_tenant_pages")
          .Help("Pages that a tenant's open streams may need.")
          .Register(r);
  prometheus::Family<Counter>& unauthenticated =
      BuildCounter()
          .Name("recurve_unauthenticated_requests_total")
          .Help("Calls without an API key, or with one that is not known.")
          .Register(r);
  Gauge& grpc_used =
      MakeGauge(r, "grpc_connections", "gRPC connections that are open.",
                {{"state", "used"}});
  Gauge& grpc_total =
      MakeGauge(r, "grpc_connections", "gRPC connections that are open.",
                {{"state", "total"}});
  Counter& grpc_refused = MakeCounter(
      r, "grpc_connections_refused_total",
      "gRPC connections that were closed because the limit was reached.");
  prometheus::Family<Counter>& grpc_ended =
      BuildCounter()
          .Name("recurve_grpc_connections_ended_total")
          .Help("gRPC connections that the server ended, by reason.")
          .Register(r);
  Counter& http_displaced = MakeCounter(
      r, "http_connections_displaced_total",
      "Idle HTTP connections that were ended to make room for others.");
  prometheus::Family<Counter>& http_requests =
      BuildCounter()
          .Name("recurve_http_requests_total")
          .Help("HTTP requests answered, by endpoint and status.")
          .Register(r);
  prometheus::Family<Histogram>& http_seconds =
      BuildHistogram()
          .Name("recurve_http_request_duration_seconds")
          .Help("From the head of an HTTP request to the end of its answer.")
          .Register(r);

  Histogram& first_token =
      MakeHistogram(r, "time_to_first_token_seconds",
                    "From acceptance to the first token.", RequestBuckets());
  Histogram& inter_token =
      MakeHistogram(r, "inter_token_latency_seconds",
                    "Between two tokens of a sequence.", StepBuckets());
  Histogram& per_token = MakeHistogram(
      r, "request_time_per_output_token_seconds",
      "After the first token, per token, one sample a request.", StepBuckets());
  Histogram& end_to_end =
      MakeHistogram(r, "e2e_request_latency_seconds",
                    "From acceptance to the end.", RequestBuckets());
  Histogram& queue = MakeHistogram(r, "request_queue_time_seconds",
                                   "From acceptance to the first admission.",
                                   RequestBuckets());
  Histogram& batch =
      MakeHistogram(r, "batch_size", "Sequences in a step.", SequenceBuckets());
  Histogram& step_tokens =
      MakeHistogram(r, "step_tokens", "Tokens in a step.", TokenBuckets());
  Histogram& step =
      MakeHistogram(r, "decode_step_seconds", "Time of a step.", StepBuckets());
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {
  // Created before their first event, because alerts use them and rate()
  // ignores a series' first value.
  for (const RefusalReason reason :
       {RefusalReason::kQueueFull, RefusalReason::kDeadline,
        RefusalReason::kQuota, RefusalReason::kDraining,
        RefusalReason::kDeviceFailed, RefusalReason::kUnauthenticated,
        RefusalReason::kInvalid, RefusalReason::kInternal}) {
    families_->refused.Add({{"reason", ReasonName(reason)}});
  }
  families_->failure.Add(
      {{"status", absl::StatusCodeToString(absl::StatusCode::kInternal)}});
  for (int i = 0; i < kNumCacheMisses; ++i) {
    families_->cache_prompts_by_miss[i] = &families_->cache_prompts.Add(
        {{"miss", MissName(static_cast<CacheMiss>(i))}});
  }
}
Metrics::~Metrics() = default;

std::shared_ptr<Registry> Metrics::registry() const {
  return families_->registry;
}

void Metrics::SetBuild(const std::string& version, const std::string& device) {
  families_->build.Add({{"version", version}, {"device", device}}).Set(1);
}

void Metrics::SetServing(bool serving) {
  families_->serving.Set(serving ? 1 : 0);
}

void Metrics::SetCapacity(int64_t state_bytes, int64_t slots, int64_t pages) {
  families_->state_bytes.Set(static_cast<double>(state_bytes));
  families_->slots_total.Set(static_cast<double>(slots));
  families_->pages_total.Set(static_cast<double>(pages));
}

void Metrics::OnStepDone(int64_t sequences, int64_t tokens, double seconds) {
  families_->batch.Observe(static_cast<double>(sequences));
  families_->step_tokens.Observe(static_cast<double>(tokens));
  families_->step.Observe(seconds);
}

void Metrics::OnLoad(const EngineLoad& load) {
  Families& f = *families_;
  f.running.Set(static_cast<double>(load.resident));
  f.waiting.Set(static_cast<double>(load.waiting));
  f.slots_used.Set(static_cast<double>(load.slots_used));
  f.pages_used.Set(static_cast<double>(load.pages_used));
  f.usage.Set(std::max(Fraction(load.slots_used, load.slots_total),
                       Fraction(load.pages_used, load.pages_total)));
  RaiseTo(f.prompt_tokens, load.prompt_tokens_total);
  RaiseTo(f.generation_tokens, load.generation_tokens_total);
  RaiseTo(f.preemptions, load.preemptions_total);
  RaiseTo(f.saves, load.saves_total);
  RaiseTo(f.restores, load.restores_total);
  RaiseTo(f.device_idle, load.device_idle_seconds_total);
  RaiseTo(f.recomputes, load.recomputes_total);
  f.swap_used.Set(static_cast<double>(load.swap_bytes_used));
  f.swap_total.Set(static_cast<double>(load.swap_bytes_total));
  RaiseTo(f.cached_prompt_tokens, load.cached_prompt_tokens_total);
  for (int i = 0; i < kNumCacheMisses; ++i) {
    RaiseTo(*f.cache_prompts_by_miss[i], load.prompts_by_miss_total[i]);
  }
  RaiseTo(f.snapshots_taken, load.snapshots_total);
  RaiseTo(f.snapshot_evictions, load.snapshot_evictions_total);
  f.prefix_cache_used.Set(static_cast<double>(load.prefix_cache_bytes_used));
  f.prefix_cache_total.Set(static_cast<double>(load.prefix_cache_bytes_total));
  f.states.Set(static_cast<double>(load.states));
  f.state_bytes_used.Set(static_cast<double>(load.state_bytes_used));
  f.state_bytes_total.Set(static_cast<double>(load.state_bytes_total));
}

void Metrics::OnQueued(double queue_seconds) {
  families_->queue.Observe(queue_seconds);
}
void Metrics::OnFirstToken(double seconds) {
  families_->first_token.Observe(seconds);
}
void Metrics::OnNextToken(double seconds) {
  families_->inter_token.Observe(seconds);
}

void Metrics::OnCommandDone(const CommandResult& result) {
  families_->success.Add({{"finished_reason", ReasonName(result.reason)}})
      .Increment();
  families_->end_to_end.Observe(result.total_seconds);
  if (result.completion_tokens > 1) {
    families_->per_token.Observe(
        (result.total_seconds - result.time_to_first_token_seconds) /
        static_cast<double>(result.completion_tokens - 1));
  }
}

void Metrics::OnFailed(const absl::Status& status) {
  families_->failure.Add({{"status", absl::StatusCodeToString(status.code())}})
      .Increment();
}

void Metrics::OnRefused(RefusalReason reason) {
  families_->refused.Add({{"reason", ReasonName(reason)}}).Increment();
}

void Metrics::OnTenantAdmitted(const std::string& tenant) {
  families_->tenant_admitted.Add({{"tenant", tenant}}).Increment();
}
void Metrics::OnTenantRefused(const std::string& tenant, const char* reason) {
  families_->tenant_refused.Add({{"tenant", tenant}, {"reason", reason}})
      .Increment();
}
void Metrics::AddTenantPages(const std::string& tenant, double difference) {
  families_->tenant_pages.Add({{"tenant", tenant}}).Increment(difference);
}
void Metrics::AddTenantStreams(const std::string& tenant, int difference) {
  families_->tenant_streams.Add({{"tenant", tenant}}).Increment(difference);
}
void Metrics::OnUnauthenticated(const char* reason) {
  families_->unauthenticated.Add({{"reason", reason}}).Increment();
}

void Metrics::SetTlsExpiry(const char* file, int64_t seconds) {
  families_->tls_expiry.Add({{"file", file}}).Set(static_cast<double>(seconds));
}
void Metrics::SetMaxGrpcConnections(int64_t connections) {
  families_->grpc_total.Set(static_cast<double>(connections));
}
void Metrics::SetGrpcConnections(int64_t connections) {
  families_->grpc_used.Set(static_cast<double>(connections));
}
void Metrics::OnGrpcRefused() { families_->grpc_refused.Increment(); }
void Metrics::OnHttpDisplaced() { families_->http_displaced.Increment(); }
void Metrics::DeclareGrpcConnectionEnd(const char* reason) {
  families_->grpc_ended.Add({{"reason", reason}});
}
void Metrics::OnGrpcConnectionEnded(const char* reason) {
  families_->grpc_ended.Add({{"reason", reason}}).Increment();
}

void Metrics::OnHttpAnswered(const char* endpoint, int status, double seconds) {
  families_->http_requests
      .Add({{"endpoint", endpoint}, {"code", std::to_string(status)}})
      .Increment();
  families_->http_seconds.Add({{"endpoint", endpoint}}, RequestBuckets())
      .Observe(seconds);
}

}  // namespace recurve
