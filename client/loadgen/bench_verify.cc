#include "client/loadgen/bench_verify.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/loadgen/bench_cache.h"

namespace recurve {
namespace {

// (conversation, request of its tree) -> its record.
using Turns = std::map<std::pair<uint64_t, uint32_t>, const RequestRecord*>;

// Recomputes the prompt and the output of every request that `turn` goes on
// from.
std::vector<uint32_t> History(const Workload& workload, const Turns& turns,
                              uint64_t index, uint32_t turn) {
  const RequestTree tree = workload.Tree(index);
  std::vector<uint32_t> path;  // from the parent to the root
  for (auto parent = tree.Parent(turn); parent.has_value();
       parent = tree.Parent(*parent)) {
    path.push_back(*parent);
  }
  std::vector<uint32_t> history;
  for (auto i = path.rbegin(); i != path.rend(); ++i) {
    const WorkItem item = workload.MakeTurn(index, *i, history);
    const auto& prompt = item.request.prompt_ids().ids();
    history.assign(prompt.begin(), prompt.end());
    const auto& output = turns.at({index, *i})->generation.token_ids;
    history.insert(history.end(), output.begin(), output.end());
  }
  return history;
}

// How the tokens of the run differ from those of the repetition; empty if
// equal.
std::string Difference(const RequestRecord& record,
                       const std::vector<uint32_t>& alone) {
  const std::vector<uint32_t>& loaded = record.generation.token_ids;
  const size_t common = std::min(loaded.size(), alone.size());
  for (size_t i = 0; i < common; ++i) {
    if (loaded[i] != alone[i]) {
      return absl::StrCat("token ", i, " was ", loaded[i], " under load, but ",
                          alone[i], " alone");
    }
  }
  const bool same_length = record.outcome == Outcome::kCancelled
                               ? loaded.size() <= alone.size()
                               : loaded.size() == alone.size();
  if (same_length) return "";
  return absl::StrCat(loaded.size(), " tokens under load, but ", alone.size(),
                      " alone");
}

// Adds `count` of the candidates, spread evenly.
void Take(const std::vector<const RequestRecord*>& candidates, uint64_t count,
          std::vector<const RequestRecord*>* chosen) {
  for (uint64_t i = 0; i < count; ++i) {
    chosen->push_back(candidates[i * candidates.size() / count]);
  }
}

// The requests to repeat, hits first.
std::vector<const RequestRecord*> Choose(const Turns& turns, uint64_t limit) {
  std::vector<const RequestRecord*> hits;
  std::vector<const RequestRecord*> others;
  for (const auto& entry : turns) {
    const RequestRecord* const record = entry.second;
    if (record->outcome == Outcome::kFailed ||
        record->generation.token_ids.empty()) {
      continue;
    }
    (IsCacheHit(*record) ? hits : others).push_back(record);
  }
  std::vector<const RequestRecord*> chosen;
  const uint64_t from_hits = std::min<uint64_t>(limit, hits.size());
  Take(hits, from_hits, &chosen);
  Take(others, std::min<uint64_t>(limit - from_hits, others.size()), &chosen);
  return chosen;
}

absl::StatusOr<std::vector<uint32_t>> RunCold(
    RecurveClient* client, const v1::GenerateRequest& request,
    const CallOptions& call) {
  Generation alone;
  absl::Status stream_error;
  absl::Status status = client->Generate(
      request,
      [&](const v1::GenerateEvent& event) {
        stream_error = alone.Add(event);
        return stream_error.ok();
      },
      call);
  if (!stream_error.ok()) status = stream_error;
  if (status.ok()) status = alone.CheckFinished();
  RECURVE_RETURN_IF_ERROR(status);
  const uint32_t cached = alone.end.usage().cache().cached_tokens();
  if (cached > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server took ", cached,
        " tokens of the prompt from its prefix cache, although no other "
        "request had the cache_key '",
        request.cache_key(), "'"));
  }
  return std::move(alone.token_ids);
}

}  // namespace

absl::StatusOr<VerifyResult> VerifyAlone(RecurveClient* client,
                                         const Workload& workload,
                                         const BenchResult& result,
                                         uint64_t limit,
                                         const CallOptions& call) {
  Turns turns;
  for (const RequestRecord& record : result.records) {
    turns[{record.index, record.turn}] = &record;
  }
  const std::string key = UniqueCacheKey("cold");
  VerifyResult verified;
  for (const RequestRecord* const record : Choose(turns, limit)) {
    WorkItem item = workload.MakeTurn(
        record->index, record->turn,
        History(workload, turns, record->index, record->turn));
    item.request.set_cache_key(absl::StrCat(key, "-", verified.checked));
    const auto alone = RunCold(client, item.request, call);
    if (!alone.ok()) {
      return absl::Status(
          alone.status().code(),
          absl::StrCat("--verify: request ", record->index, " turn ",
                       record->turn, " alone: ", alone.status().message()));
    }
    ++verified.checked;
    if (IsCacheHit(*record)) ++verified.hits;
    const std::string difference = Difference(*record, *alone);
    if (!difference.empty()) {
      verified.mismatches.push_back(absl::StrCat(
          "request ", record->index, " turn ", record->turn, ": ", difference));
    }
  }
  return verified;
}

}  // namespace recurve
