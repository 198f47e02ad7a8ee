#ifndef RECURVE_CLIENT_LOADGEN_BENCH_CACHE_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_CACHE_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/loadgen/bench_runner.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// What the server's prefix cache did for a run, as usage.cache of its responses
// says. Only completed requests count: others have no usage.

// A completed request whose prompt was in the cache, in part at least.
bool IsCacheHit(const RequestRecord& record);

// "none", "unknown", "diverged", "evicted", "short", "disabled", "unspecified",
// or "unknown(N)".
std::string CacheMissName(v1::CacheMiss miss);

// Adds cached_tokens, cache_written_tokens, cache_hits, cache_hit_rate,
// cache_token_hit_rate, cache_misses and cache_partial_hits, which
// bench_metrics.h defines. The rates are null when no request completed.
void AddCacheFigures(const BenchResult& result, nlohmann::ordered_json* report);

// The same as lines of a table.
std::string FormatCacheFigures(const nlohmann::ordered_json& report);

// Adds cached_tokens, cache_written_tokens and cache_miss of one request; null
// without usage.
void AddCacheUse(const RequestRecord& record, nlohmann::ordered_json* line);

// "bench-PURPOSE-" and 16 random hexadecimal digits: a cache_key that no other
// run has, so that a request with it finds nothing of earlier runs.
std::string UniqueCacheKey(absl::string_view purpose);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_CACHE_H_
