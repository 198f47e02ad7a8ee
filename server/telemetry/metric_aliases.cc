#include "server/telemetry/metric_aliases.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

struct Alias {
  absl::string_view ours;  // after recurve_
  absl::string_view name;  // after vllm:
};
// Older routers read the names with gpu_.
constexpr Alias kAliases[] = {
    {"num_requests_running", "num_requests_running"},
    {"num_requests_waiting", "num_requests_waiting"},
    {"kv_cache_usage_perc", "kv_cache_usage_perc"},
    {"kv_cache_usage_perc", "gpu_cache_usage_perc"},
    {"num_preemptions_total", "num_preemptions_total"},
    {"prompt_tokens_total", "prompt_tokens_total"},
    {"generation_tokens_total", "generation_tokens_total"},
    {"prompt_tokens_total", "prefix_cache_queries_total"},
    {"prompt_tokens_total", "gpu_prefix_cache_queries_total"},
    {"prefix_cache_hit_tokens_total", "prefix_cache_hits_total"},
    {"prefix_cache_hit_tokens_total", "gpu_prefix_cache_hits_total"},
    {"time_to_first_token_seconds", "time_to_first_token_seconds"},
    {"inter_token_latency_seconds", "inter_token_latency_seconds"},
    {"request_time_per_output_token_seconds",
     "request_time_per_output_token_seconds"},
    {"e2e_request_latency_seconds", "e2e_request_latency_seconds"},
};

// What vLLM says of its cache, from recurve_tpa_pages.
MetricFamily CacheConfig(const std::string& model_name,
                         const MetricFamily& pages) {
  MetricFamily info;
  info.name = "vllm:cache_config_info";
  info.help = "The cache, as vLLM's metric of this name describes it.";
  info.type = prometheus::MetricType::Gauge;
  for (const ClientMetric& metric : pages.metric) {
    for (const ClientMetric::Label& label : metric.label) {
      if (label.name != "state" || label.value != "total") continue;
      ClientMetric one;
      one.label = {
          {"block_size", absl::StrCat(kPageTokens)},
          {"model_name", model_name},
          {"num_gpu_blocks", absl::StrCat(std::llround(metric.gauge.value))}};
      one.gauge.value = 1;
      info.metric.push_back(std::move(one));
    }
  }
  return info;
}

}  // namespace

void AddVllmNames(const std::string& model_name,
                  std::vector<MetricFamily>* families) {
  std::vector<MetricFamily> added;
  for (const MetricFamily& ours : *families) {
    if (ours.name == "recurve_tpa_pages") {
      added.push_back(CacheConfig(model_name, ours));
    }
    for (const Alias& alias : kAliases) {
      if (ours.name != absl::StrCat("recurve_", alias.ours)) continue;
      MetricFamily copy = ours;
      copy.name = absl::StrCat("vllm:", alias.name);
      copy.help = absl::StrCat("recurve_", alias.ours, ", as vLLM calls it.");
      for (ClientMetric& metric : copy.metric) {
        metric.label.push_back({"model_name", model_name});
      }
      added.push_back(std::move(copy));
    }
  }
  std::move(added.begin(), added.end(), std::back_inserter(*families));
}

}  // namespace recurve
