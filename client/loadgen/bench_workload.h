#ifndef RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/loadgen/bench_lengths.h"
#include "client/loadgen/bench_trace.h"
#include "recurve/v1/control.pb.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// The shape of the requests of a bench.
struct WorkloadConfig {
  LengthDistribution prompt_tokens{64, 256};
  LengthDistribution output_tokens{16, 128};
  // If set, request i has the lengths of its entry i, modulo its size.
  std::shared_ptr<const std::vector<TraceEntry>> trace;
  // Requests per conversation: the prompt of each but the first is the prompt
  // and output of the previous one plus `turn_tokens` new tokens.
  LengthDistribution turns{1, 1};
  LengthDistribution turn_tokens{64, 256};
  bool ignore_eos = true;
  // Fraction of the conversations, 0 to 1, whose last request the client
  // cancels midway.
  double cancel_fraction = 0;
  std::optional<float> temperature;
  uint64_t seed = 0;
};

struct WorkItem {
  v1::GenerateRequest request;
  // Cancel after this many tokens; 0: run to the end.
  uint32_t cancel_after_tokens = 0;
};

// Makes conversation number i from (config, model, i) and the server's answers
// alone, so that the same requests are sent regardless of the concurrency and
// the server's speed. Without `turns` a conversation is one request.
//
// Thread safety: const methods may be called from any thread.
class Workload {
 public:
  // InvalidArgument if the longest request, at the end of a conversation, does
  // not fit the model, or if its vocabulary has only special tokens.
  static absl::StatusOr<Workload> Create(const WorkloadConfig& config,
                                         const v1::ModelInfo& model);

  // Prompt: the model's beginning-of-sequence token, if it has one, then ids
  // drawn uniformly from the vocabulary without its special tokens. Every
  // 1/cancel_fraction-th request is to be cancelled, after a uniform number of
  // tokens below its length (a request of one token: after that one).
  WorkItem Make(uint64_t index) const { return MakeTurn(index, 0, {}); }

  // Number of requests in conversation `index`, >= 1.
  uint32_t Turns(uint64_t index) const;

  // Request `turn`, from 0, of conversation `index`. `history` is the prompt
  // and the output of the turn before, empty for turn 0.
  WorkItem MakeTurn(uint64_t index, uint32_t turn,
                    const std::vector<uint32_t>& history) const;

 private:
  Workload(const WorkloadConfig& config, const v1::ModelInfo& model);

  WorkloadConfig config_;
  std::optional<uint32_t> bos_;
  // Ids that prompts do not contain, ascending and without repeats.
  std::vector<uint32_t> special_;
  uint32_t vocab_size_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_
