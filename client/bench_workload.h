#ifndef RECURVE_CLIENT_BENCH_WORKLOAD_H_
#define RECURVE_CLIENT_BENCH_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/parse.h"
#include "recurve/v1/control.pb.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// What the requests of a bench look like.
struct WorkloadConfig {
  CountRange prompt_tokens{64, 256};
  CountRange output_tokens{16, 128};
  bool ignore_eos = true;
  // Of all requests, 0 to 1: cancelled by the client midway.
  double cancel_fraction = 0;
  std::optional<float> temperature;
  uint64_t seed = 0;
};

struct WorkItem {
  v1::GenerateRequest request;
  // Cancel once this many tokens have come; 0: run to the end.
  uint32_t cancel_after_tokens = 0;
};

// Makes request number i from (config, model, i) alone, so that the same
// requests are sent whatever the concurrency and the server's speed.
//
// Thread safety: const methods may be called from any thread.
class Workload {
 public:
  // InvalidArgument when the longest request does not fit the model, or when
  // its vocabulary has nothing but special tokens.
  static absl::StatusOr<Workload> Create(const WorkloadConfig& config,
                                         const v1::ModelInfo& model);

  // Prompt: the model's beginning-of-sequence token, if it has one, then ids
  // drawn uniformly from the vocabulary without its special tokens. Lengths are
  // uniform in their ranges. Every 1/cancel_fraction-th request is to be
  // cancelled, after a uniform number of tokens below its length (a request of
  // one token: after that one).
  WorkItem Make(uint64_t index) const;

 private:
  Workload(const WorkloadConfig& config, const v1::ModelInfo& model);

  WorkloadConfig config_;
  std::optional<uint32_t> bos_;
  // Ids that prompts do not contain, ascending and without repeats.
  std::vector<uint32_t> special_;
  uint32_t vocab_size_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_BENCH_WORKLOAD_H_
