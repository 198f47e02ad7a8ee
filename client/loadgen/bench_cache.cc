#include "client/loadgen/bench_cache.h"

#include <cstdint>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;

const v1::CacheUse& CacheUseOf(const RequestRecord& record) {
  return record.generation.end.usage().cache();
}

ordered_json Share(uint64_t part, uint64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

// Requests by reason, in the order of the proto.
ordered_json ByReason(const std::map<v1::CacheMiss, uint64_t>& counts) {
  ordered_json reasons = ordered_json::object();
  for (const auto& [miss, count] : counts) {
    reasons[CacheMissName(miss)] = count;
  }
  return reasons;
}

}  // namespace

bool IsCacheHit(const RequestRecord& record) {
  return record.outcome == Outcome::kCompleted &&
         CacheUseOf(record).cached_tokens() > 0;
}

std::string CacheMissName(v1::CacheMiss miss) {
  switch (miss) {
    case v1::CACHE_MISS_UNSPECIFIED:
      return "unspecified";
    case v1::CACHE_MISS_NONE:
      return "none";
    case v1::CACHE_MISS_UNKNOWN:
      return "unknown";
    case v1::CACHE_MISS_DIVERGED:
      return "diverged";
    case v1::CACHE_MISS_EVICTED:
      return "evicted";
    case v1::CACHE_MISS_SHORT:
      return "short";
    case v1::CACHE_MISS_DISABLED:
      return "disabled";
    default:
      return absl::StrCat("unknown(", static_cast<int>(miss), ")");
  }
}

void AddCacheFigures(const BenchResult& result, ordered_json* report) {
  uint64_t completed = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t written_tokens = 0;
  uint64_t hits = 0;
  std::map<v1::CacheMiss, uint64_t> misses;
  std::map<v1::CacheMiss, uint64_t> partial_hits;
  for (const RequestRecord& record : result.records) {
    if (record.outcome != Outcome::kCompleted) continue;
    const v1::CacheUse& use = CacheUseOf(record);
    ++completed;
    prompt_tokens += record.prompt_tokens;
    cached_tokens += use.cached_tokens();
    written_tokens += use.written_tokens();
    if (!IsCacheHit(record)) {
      ++misses[use.miss()];
      continue;
    }
    ++hits;
    if (use.miss() != v1::CACHE_MISS_NONE) ++partial_hits[use.miss()];
  }
  ordered_json& figures = *report;
  figures["cached_tokens"] = cached_tokens;
  figures["cache_written_tokens"] = written_tokens;
  figures["cache_hits"] = hits;
  figures["cache_hit_rate"] = Share(hits, completed);
  figures["cache_token_hit_rate"] = Share(cached_tokens, prompt_tokens);
  figures["cache_misses"] = ByReason(misses);
  figures["cache_partial_hits"] = ByReason(partial_hits);
}

std::string FormatCacheFigures(const ordered_json& report) {
  std::string text;
  const auto percent = [&](const char* label, const char* key) {
    const ordered_json& value = report[key];
    absl::StrAppend(&text, value.is_null()
                               ? absl::StrFormat("%-28s%12s\n", label, "-")
                               : absl::StrFormat("%-28s%12.2f\n", label,
                                                 100 * value.get<double>()));
  };
  const auto reasons = [&](const char* label, const char* key) {
    uint64_t total = 0;
    for (const auto& entry : report[key].items()) {
      total += entry.value().get<uint64_t>();
    }
    absl::StrAppendFormat(&text, "%-28s%12d\n", label, total);
    for (const auto& entry : report[key].items()) {
      absl::StrAppendFormat(&text, "    %-24s%12d\n", entry.key(),
                            entry.value().get<uint64_t>());
    }
  };
  absl::StrAppendFormat(&text, "%-28s%12d\n", "Input tokens cached",
                        report["cached_tokens"].get<uint64_t>());
  percent("  % of input tokens", "cache_token_hit_rate");
  absl::StrAppendFormat(&text, "%-28s%12d\n", "Cache hits",
                        report["cache_hits"].get<uint64_t>());
  percent("  % of completed requests", "cache_hit_rate");
  reasons("  of them in part", "cache_partial_hits");
  reasons("Cache misses", "cache_misses");
  return text;
}

void AddCacheUse(const RequestRecord& record, ordered_json* line) {
  ordered_json& fields = *line;
  if (!record.generation.finished) {
    fields["cached_tokens"] = nullptr;
    fields["cache_written_tokens"] = nullptr;
    fields["cache_miss"] = nullptr;
    return;
  }
  const v1::CacheUse& use = CacheUseOf(record);
  fields["cached_tokens"] = use.cached_tokens();
  fields["cache_written_tokens"] = use.written_tokens();
  fields["cache_miss"] = CacheMissName(use.miss());
}

std::string UniqueCacheKey(absl::string_view purpose) {
  std::random_device device;
  return absl::StrFormat("bench-%s-%08x%08x", purpose, device(), device());
}

}  // namespace recurve
