#include "engine/models/tpa/tpa_launches.h"

#include <algorithm>

#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/prefill/tpa_prefill_plan.h"

namespace recurve {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs of prompts: any but the first and last of their sequence have at least
// kMinPromptTokens tokens.
int64_t MaxPromptRuns(const TpaStepLimits& limits) {
  return std::min(
      limits.max_tokens,
      2 * limits.max_sequences + limits.max_tokens / int64_t{kMinPromptTokens});
}

int64_t MaxLength(const TpaStepLimits& limits) {
  return kTpaPageTokens * std::max<int64_t>(limits.max_pages, 1);
}

}  // namespace

// Between two runs of prompts, and at both ends of a sequence, there is at most
// one run of the other kind.
int64_t MaxTpaRuns(const TpaStepLimits& limits) {
  return std::min(limits.max_tokens,
                  5 * limits.max_sequences +
                      2 * limits.max_tokens / int64_t{kMinPromptTokens});
}

std::vector<TpaPieceRows> CutTpaPieces(const std::vector<StepRun>& runs,
                                       const TpaStepLimits& limits) {
  std::vector<StepRun> single, several;
  for (const StepRun& run : runs) {
    if (!run.step() && limits.prefill) continue;
    if (run.count() == 1) {
      single.push_back(run);
      continue;
    }
    for (int64_t i = run.begin; i < run.end; i += kTpaPieceTokens) {
      several.push_back(
          {run.sequence, run.kind, i, std::min(i + kTpaPieceTokens, run.end)});
    }
  }
  std::vector<TpaPieceRows> pieces;
  const auto add = [&](const std::vector<StepRun>& rows, int64_t most,
                       int64_t tokens) {
    for (auto row = rows.begin(); row != rows.end();) {
      const auto end = row + std::min<int64_t>(most, rows.end() - row);
      pieces.push_back({tokens, {row, end}});
      row = end;
    }
  };
  add(single, limits.max_sequences, 1);
  add(several, kTpaPieceRows, kTpaPieceTokens);
  return pieces;
}

std::vector<TpaPrefillRuns> CutTpaPrefills(const StepBatch& batch,
                                           const std::vector<StepRun>& runs,
                                           const TpaStepLimits& limits) {
  std::vector<TpaPrefillRuns> launches;
  if (!limits.prefill) return launches;
  const int64_t most = std::max(kTpaPrefillContext, MaxLength(limits));
  size_t first = 0;
  while (first < runs.size()) {
    if (runs[first].step()) {
      ++first;
      continue;
    }
    TpaPrefillRuns launch = {first, 0, 0, 0};
    for (size_t i = first; i < runs.size() && i - first < kTpaPrefillRows;
         ++i) {
      if (runs[i].step()) continue;
      const int64_t length = batch.positions[runs[i].end - 1] + 1;
      if (i > first && launch.context + length > most) break;
      launch.context += length;
      launch.tokens += runs[i].count();
      launch.rows = static_cast<int64_t>(i + 1 - first);
    }
    launches.push_back(launch);
    first += launch.rows;
  }
  return launches;
}

TpaContexts TpaContextsOf(absl::Span<const int64_t> positions, int64_t rows,
                          const TpaContextLimits& limits) {
  if (rows <= limits.short_rows &&
      std::all_of(positions.begin(), positions.end(), [](int64_t position) {
        return position < TpaChunkBegin(kTpaClusterChunks);
      })) {
    return TpaContexts::kShort;
  }
  int64_t chunks = 0;
  for (const int64_t position : positions)
    chunks += TpaChunkCount(static_cast<int>(position + 1));
  if (limits.many_chunks > 0 && chunks > limits.many_chunks)
    return TpaContexts::kMany;
  // Padding rows have no chunks, but blocks are distributed over all rows.
  if (rows > limits.few_chunks) return TpaContexts::kAny;
  // The products of one row start on multiprocessors that attention releases
  // early, and need three in four (ShareChainTiles; measured,
  // docs/kernels/tpa_decode.md).
  const int most = rows == 1 ? limits.few_chunks / 4 : limits.few_chunks;
  return chunks <= most ? TpaContexts::kFew : TpaContexts::kAny;
}

int64_t MaxTpaPieceScheduleBytes(const TpaShape& shape, const TpaDevice& device,
                                 const TpaStepLimits& limits) {
  const int64_t runs = MaxTpaRuns(limits);
  const auto piece = [&](int64_t rows, int64_t tokens) {
    const TpaDecodePlan plan =
        PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, static_cast<int>(rows),
                      static_cast<int>(tokens), device);
    return AlignTpaSchedule(
        TpaScheduleParts(plan, static_cast<int>(rows), MaxLength(limits))
            .bytes);
  };
  // Every run has at most one partly filled row.
  return CeilDiv(runs, limits.max_sequences) * piece(limits.max_sequences, 1) +
         CeilDiv(limits.max_tokens / kTpaPieceTokens + runs, kTpaPieceRows) *
             piece(kTpaPieceRows, kTpaPieceTokens);
}

int64_t MaxTpaPrefillScheduleBytes(const TpaShape& shape,
                                   const TpaStepLimits& limits) {
  if (!limits.prefill) return 0;
  const int64_t runs = MaxTpaRuns(limits);
  // A launch has tiles for its tokens and for its context, one of each partly
  // filled, and, as PlanTpaPrefill counts, one more for each row. Rows are runs
  // of either kind.
  const TpaPrefillPlan plan = PlanTpaPrefill(shape, {1, 1, 1, 0});
  const int64_t prompts = MaxPromptRuns(limits);  // also the maximum number of
                                                  // launches
  const int64_t query_tiles =
      limits.max_tokens / plan.query_tile + prompts + runs;
  const int64_t key_tiles =
      prompts * MaxLength(limits) / plan.key_tile + prompts + runs;
  // The schedule's other parts, and the alignment of the next one.
  const int64_t fixed =
      AlignTpaSchedule(TpaPrefillSchedule(0, 0).bytes) + kTpaScheduleAlignment;
  return prompts * fixed +
         2 * static_cast<int64_t>(sizeof(TpaPrefillTile)) * query_tiles +
         static_cast<int64_t>(sizeof(TpaPrefillKeyTile)) * key_tiles;
}

int64_t MaxTpaPieceTokens(const TpaStepLimits& limits) {
  return limits.max_tokens + kTpaPieceTokens * MaxTpaRuns(limits);
}

int64_t MaxTpaStepBytes(const TpaStepLimits& limits, int64_t schedules) {
  const int64_t runs = MaxTpaRuns(limits);
  const int64_t rows = limits.max_tokens / kTpaPieceTokens + 2 * runs;
  const int64_t pages = std::max<int64_t>(limits.max_pages, 1);
  // Positions and indices of tokens; for each row its pages and three numbers;
  // alignment.
  return 12 * MaxTpaPieceTokens(limits) + (16 + 4 * pages) * rows +
         64 * (rows + 8) + schedules + kTpaScheduleAlignment;
}

}  // namespace recurve
