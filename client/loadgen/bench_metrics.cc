#include "client/loadgen/bench_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace recurve {

const std::vector<MetricDefinition>& MetricDefinitions() {
  static const auto* const definitions = new std::vector<MetricDefinition>{
      {"ttft", "ms",
       "time to first token: from sending the request to its first tokens "
       "event, queueing and prefill included"},
      {"ttft_hit", "ms",
       "ttft of requests whose prompt was in the server's prefix cache, in "
       "part at least"},
      {"ttft_miss", "ms", "ttft of the others"},
      {"tpot", "ms",
       "time per output token: (last tokens event - first tokens event) / "
       "(tokens - 1), one value a request; requests of one token have none"},
      {"itl", "ms",
       "inter-token latency: the gap between two tokens events divided by the "
       "tokens of the later one, counted once for each of those tokens; the "
       "first token has none"},
      {"e2el", "ms",
       "end-to-end latency: from sending the request to its final status"},
      {"send_lag", "ms",
       "how late the client sent a request: after its arrival in the schedule "
       "(open loop), or after the end of what it waited for and the think "
       "time, or the pause after UNAVAILABLE (closed loop); of all requests. "
       "Large values mean that the client or --max-concurrency, not the "
       "server, "
       "set the pace, and TTFT does not include them"},
      {"reject", "ms",
       "how long a refusal took: from sending to the final status of requests "
       "that failed with RESOURCE_EXHAUSTED or UNAVAILABLE"},
      {"mean, median, std, p90, p95, p99, p99.9", "ms",
       "of a latency: percentiles are interpolated linearly between the two "
       "closest ranks, std is of the population; of completed requests, but "
       "for send_lag and reject; null when there is no value"},
      {"duration", "s", "from the start of the run to the last final status"},
      {"completed", "requests",
       "ended with status OK and a whole stream: no gap between tokens, a "
       "finished event, and its count of tokens right"},
      {"cancelled", "requests", "cancelled by the client as planned"},
      {"failed", "requests", "all others; errors has them by status"},
      {"num_prompts", "requests", "completed, cancelled and failed"},
      {"total_input_tokens", "tokens", "prompts of completed requests"},
      {"total_output_tokens", "tokens", "generated in completed requests"},
      {"cancelled_output_tokens", "tokens",
       "received of cancelled requests; in no throughput but "
       "max_output_tokens_per_s"},
      {"preemptions", "",
       "how often completed requests lost their memory to others, as the "
       "server counts"},
      {"cached_tokens", "tokens",
       "of total_input_tokens, those whose state was in the prefix cache, as "
       "the server counts"},
      {"cache_written_tokens", "tokens",
       "of total_input_tokens, those in the longest snapshot taken of their "
       "prompt, as the server counts"},
      {"cache_hits", "requests", "completed, with cached tokens"},
      {"cache_hit_rate", "",
       "cache_hits / completed; null when no request completed"},
      {"cache_token_hit_rate", "",
       "cached_tokens / total_input_tokens; null when no request completed"},
      {"cache_misses", "requests",
       "completed, without cached tokens, by the server's reason: unknown "
       "(no prompt that begins alike was seen), diverged (the prompt parts "
       "from those seen), evicted (a snapshot made room for others), short "
       "(no snapshot fits the prompt), disabled (no prefix cache), "
       "unspecified (the server says nothing)"},
      {"cache_partial_hits", "requests",
       "of cache_hits, those where more of the prompt could have been in the "
       "cache, by the same reasons"},
      {"request_rate", "requests/s",
       "asked for in an open loop; \"inf\" in a closed one, null for a trace"},
      {"burstiness", "",
       "shape of the gamma distribution of gaps in an open loop: 1 is Poisson, "
       "less is burstier; null when gaps are constant or of a trace, and in a "
       "closed loop"},
      {"max_concurrency", "streams",
       "the bound on streams, in a closed loop of trees the bound on trees; "
       "null when there was none"},
      {"request_throughput", "requests/s", "completed / duration"},
      {"request_goodput", "requests/s",
       "completed requests that kept every limit of --goodput / duration; null "
       "without --goodput"},
      {"good_fraction", "",
       "of the requests that were not cancelled, those that completed and kept "
       "every limit of --goodput; null without --goodput"},
      {"output_throughput", "tokens/s", "total_output_tokens / duration"},
      {"total_token_throughput", "tokens/s",
       "(total_input_tokens + total_output_tokens) / duration"},
      {"max_output_tokens_per_s", "tokens/s",
       "most tokens in one whole second, counted from the start of the run; "
       "of completed and cancelled requests; null in a run of less than a "
       "second"},
      {"mean_concurrent_requests", "streams",
       "sum over all requests of the time from sending to final status / "
       "duration"},
      {"max_concurrent_requests", "streams", "most requests open at a time"},
      {"errors", "requests", "failed requests by gRPC status"},
      {"stopped_early", "", "the run was interrupted, or reached --max-errors"},
      {"interrupted_after", "s",
       "from the start of the run to its interruption; null when there was "
       "none"},
      {"interrupted_requests", "requests",
       "under way when the run was interrupted; in no other figure"},
      {"verified", "requests",
       "with --verify: sent again alone, after the run, without the prefix "
       "cache's help, and compared token by token"},
      {"verified_hits", "requests", "with --verify: of those, cache hits"},
      {"verify_mismatches", "requests",
       "with --verify: of those, the ones whose tokens differ"},
      {"saturated", "",
       "in a sweep over rates: the server fell behind, as saturation_reason "
       "says: more than 5% of the requests failed for load, that is with "
       "RESOURCE_EXHAUSTED or DEADLINE_EXCEEDED; or in the second half of the "
       "sending time, where at least 10 requests arrived, those under way "
       "grew by more than a tenth of the arrivals and by more than twice the "
       "square root of their number (what chance alone does). Null, with a "
       "reason, when the step was interrupted, when it reached --max-errors "
       "without being saturated, or when requests failed otherwise"},
      {"first_index", "",
       "in a sweep: the index of the step's first conversation; in "
       "--requests-jsonl the step has those from there up to 2^32 beyond, and "
       "no other step has any of them"},
      {"max_sustained_rate", "requests/s",
       "of a sweep over rates: the highest rate below every saturated one; "
       "steps that are null do not count; null when there is none"},
  };
  return *definitions;
}

std::string ExplainMetrics() {
  constexpr size_t kWidth = 79;
  constexpr size_t kIndent = 4;
  std::string text;
  for (const MetricDefinition& metric : MetricDefinitions()) {
    absl::StrAppend(
        &text, metric.name,
        *metric.unit == '\0' ? "" : absl::StrCat(" (", metric.unit, ")"), "\n");
    std::string line(kIndent, ' ');
    for (const absl::string_view word : absl::StrSplit(metric.meaning, ' ')) {
      if (line.size() > kIndent && line.size() + 1 + word.size() > kWidth) {
        absl::StrAppend(&text, line, "\n");
        line.assign(kIndent, ' ');
      }
      absl::StrAppend(&line, line.size() > kIndent ? " " : "", word);
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace recurve
