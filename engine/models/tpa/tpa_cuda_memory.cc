// The memory that the TPA layers of a GPU take, apart from pages.

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/models/tpa/tpa_cuda.h"

namespace recurve {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Scratch memory for queries, keys and values of as many heads as fit, but of
// at least one.
constexpr int64_t kPrefillScratch = 256 << 20;

absl::Status Allocate(CudaMemory* memory, int64_t bytes,
                      absl::string_view what) {
  RECURVE_ASSIGN_OR_RETURN(*memory, CudaMemory::Allocate(kDevice, bytes, what));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CudaTpa::Sizes> CudaTpa::Measure() {
  Sizes sizes;
  const int64_t pages = std::max<int64_t>(options_.max_pages, 1);
  for (Shape& shape : shapes_) {
    const TpaShape& s = shape.shape;
    shape.schedule_bytes = 0;
    for (const auto& [rows, tokens, contexts] :
         {std::tuple(options_.max_sequences, int64_t{1}, TpaContexts::kAny),
          std::tuple(options_.max_sequences, int64_t{1}, TpaContexts::kFew),
          std::tuple(options_.max_sequences, int64_t{1}, TpaContexts::kMany),
          std::tuple(std::min(int64_t{context_limits_.short_rows},
                              options_.max_sequences),
                     int64_t{1}, TpaContexts::kShort),
          std::tuple(kTpaPieceRows, kTpaPieceTokens, TpaContexts::kAny)}) {
      if (rows == 0) continue;  // no plan for kShort
      RECURVE_ASSIGN_OR_RETURN(const TpaDecodePlan* plan,
                               Plan(shape, rows, tokens, contexts));
      if (!TpaDecodeHolds(*plan, static_cast<int>(rows), pages)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the GPU does not support ", rows, " sequences of ",
            kTpaPageTokens * pages, " tokens in a step: at most ", INT32_MAX,
            " tokens together, and a few million each (lower --max-num-seqs "
            "or --max-model-len)"));
      }
      if (tokens == 1) {
        shape.schedule_bytes = std::max(
            shape.schedule_bytes, AlignTpaSchedule(TpaScheduleBytes(
                                      *plan, static_cast<int>(rows), pages)));
      }
      sizes.scratch = std::max(
          sizes.scratch, TpaDecodeScratch(s, *plan, static_cast<int>(rows),
                                          static_cast<int>(tokens),
                                          kTpaPageTokens * options_.max_pages)
                             .bytes);
    }
    const int64_t most =
        std::max(kTpaPieceRows * kTpaPieceTokens, options_.max_sequences);
    sizes.queries = std::max(
        sizes.queries, kFloatBytes * most *
                           (s.q_rank > 0 ? s.q_rank * (s.num_heads + s.head_dim)
                                         : s.num_heads * s.head_dim));
    sizes.formed = std::max(sizes.formed, TpaQueryBytes(s, most));
    sizes.attended = std::max(sizes.attended,
                              kFloatBytes * most * s.num_heads * s.value_dim);
    shape.schedule_bytes = std::max(
        shape.schedule_bytes, MaxTpaPieceScheduleBytes(s, device_, limits_));
    if (!limits_.prefill) continue;
    sizes.prefill_schedules += MaxTpaPrefillScheduleBytes(s, limits_);
    shape.prefill_scratch = 0;  // so the plan has one head in scratch memory
    const TpaPrefillPlan largest =
        PlanPrefill(shape, std::min(kTpaPrefillRows, options_.max_tokens),
                    options_.max_tokens,
                    std::max(kTpaPrefillContext, kTpaPageTokens * pages));
    if (largest.query_tiles == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the GPU does not support prompts of ", kTpaPageTokens * pages,
          " tokens (lower --max-model-len)"));
    }
    const int64_t head_bytes = largest.scratch_bytes;
    shape.prefill_scratch = std::max(
        head_bytes, std::min(kPrefillScratch, s.num_heads * head_bytes));
    sizes.prefill_scratch =
        std::max(sizes.prefill_scratch, shape.prefill_scratch);
  }
  return sizes;
}

absl::StatusOr<int64_t> CudaTpa::DeviceBytes() {
  RECURVE_ASSIGN_OR_RETURN(const Sizes sizes, Measure());
  return sizes.prefill_schedules + sizes.scratch + sizes.prefill_scratch +
         sizes.queries + sizes.formed + sizes.attended;
}

absl::Status CudaTpa::Allocate() {
  RECURVE_ASSIGN_OR_RETURN(const Sizes sizes, Measure());
  const absl::string_view what =
      "partial results of attention; lower --max-num-seqs, --max-model-len or "
      "--max-num-batched-tokens";
  RECURVE_RETURN_IF_ERROR(
      recurve::Allocate(&prefill_schedules_, sizes.prefill_schedules, what));
  RECURVE_RETURN_IF_ERROR(recurve::Allocate(&scratch_, sizes.scratch, what));
  RECURVE_RETURN_IF_ERROR(
      recurve::Allocate(&prefill_scratch_, sizes.prefill_scratch, what));
  RECURVE_RETURN_IF_ERROR(recurve::Allocate(
      &queries_, sizes.queries, "queries; lower --max-num-batched-tokens"));
  RECURVE_RETURN_IF_ERROR(recurve::Allocate(
      &formed_, sizes.formed, "queries; lower --max-num-batched-tokens"));
  return recurve::Allocate(&attended_, sizes.attended,
                           "attention; lower --max-num-batched-tokens");
}

}  // namespace recurve
