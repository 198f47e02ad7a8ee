#include "engine/serving/options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

absl::Status CheckOption(const char* name, int64_t value, int64_t min,
                         int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is ", value, "; expected ", min, " to ", max));
}

}  // namespace

absl::Status EngineOptions::Validate() const {
  RECURVE_RETURN_IF_ERROR(CheckOption("max-num-seqs", max_num_seqs, 1, 65536));
  RECURVE_RETURN_IF_ERROR(CheckOption("max-num-batched-tokens",
                                      max_num_batched_tokens, 1, 1 << 20));
  if (max_num_seqs > max_num_batched_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-num-seqs is ", max_num_seqs, " and --max-num-batched-tokens ",
        max_num_batched_tokens,
        "; all running sequences must be able to decode in the same step, so "
        "the latter must be at least the former"));
  }
  // The caller may have set 0.
  if (max_chunk_tokens < 1 || max_chunk_tokens > max_num_batched_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-chunk-tokens is ", max_chunk_tokens, "; expected 0 to ",
        max_num_batched_tokens, " (--max-num-batched-tokens)"));
  }
  RECURVE_RETURN_IF_ERROR(
      CheckOption("max-model-len", max_model_len, 0, int64_t{1} << 31));
  if (max_decode_slowdown != 0 &&
      !(max_decode_slowdown >= 1.1 && max_decode_slowdown <= 1000)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-decode-slowdown is ", max_decode_slowdown,
                     "; expected 0 (no limit), or 1.1 to 1000"));
  }
  return CheckOption("max-queued-requests", max_queued_requests, 0, 1 << 20);
}

absl::Status EngineOptions::ValidateMultiple(int64_t multiple,
                                             absl::string_view device) const {
  const auto at_least = [&](const char* flag, int64_t value,
                            int64_t least) -> absl::Status {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", value, "; this model on ", device,
                     " computes prompts by ", multiple,
                     " tokens and needs at least ", least));
  };
  RECURVE_RETURN_IF_ERROR(at_least("--max-num-batched-tokens",
                                   max_num_batched_tokens,
                                   max_num_seqs + multiple - 1));
  return at_least("--max-chunk-tokens", max_chunk_tokens, multiple);
}

}  // namespace recurve
