#include "client/loadgen/bench_verify.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace recurve {
namespace {

// (conversation, turn) -> its record.
using Turns = std::map<std::pair<uint64_t, uint32_t>, const RequestRecord*>;

// Recomputes the prompt and the output of every turn before `turn`.
std::vector<uint32_t> History(const Workload& workload, const Turns& turns,
                              uint64_t index, uint32_t turn) {
  std::vector<uint32_t> history;
  for (uint32_t i = 0; i < turn; ++i) {
    const WorkItem item = workload.MakeTurn(index, i, history);
    const auto& prompt = item.request.prompt_ids().ids();
    history.assign(prompt.begin(), prompt.end());
    const auto& output = turns.at({index, i})->generation.token_ids;
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

}  // namespace

absl::StatusOr<VerifyResult> VerifyAlone(RecurveClient* client,
                                         const Workload& workload,
                                         const BenchResult& result,
                                         uint64_t limit,
                                         const CallOptions& call) {
  Turns turns;
  std::vector<const RequestRecord*> candidates;
  for (const RequestRecord& record : result.records) {
    turns[{record.index, record.turn}] = &record;
  }
  for (const auto& entry : turns) {
    const RequestRecord* const record = entry.second;
    if (record->outcome != Outcome::kFailed &&
        !record->generation.token_ids.empty()) {
      candidates.push_back(record);
    }
  }
  VerifyResult verified;
  const uint64_t count = std::min<uint64_t>(limit, candidates.size());
  for (uint64_t i = 0; i < count; ++i) {
    const RequestRecord& record = *candidates[i * candidates.size() / count];
    const WorkItem item =
        workload.MakeTurn(record.index, record.turn,
                          History(workload, turns, record.index, record.turn));
    Generation alone;
    absl::Status stream_error;
    absl::Status status = client->Generate(
        item.request,
        [&](const v1::GenerateEvent& event) {
          stream_error = alone.Add(event);
          return stream_error.ok();
        },
        call);
    if (!stream_error.ok()) status = stream_error;
    if (status.ok()) status = alone.CheckFinished();
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("--verify: request ", record.index,
                                       " alone: ", status.message()));
    }
    ++verified.checked;
    const std::string difference = Difference(record, alone.token_ids);
    if (!difference.empty()) {
      verified.mismatches.push_back(absl::StrCat(
          "request ", record.index, " turn ", record.turn, ": ", difference));
    }
  }
  return verified;
}

}  // namespace recurve
