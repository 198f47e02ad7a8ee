#ifndef RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/loadgen/bench_lengths.h"
#include "client/loadgen/bench_random.h"
#include "client/loadgen/bench_trace.h"
#include "client/loadgen/bench_tree.h"
#include "recurve/v1/control.pb.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// Conversations of a run have the indices from a multiple of this to below the
// next: no two runs share prompts.
inline constexpr uint64_t kIndicesPerRun = uint64_t{1} << 32;

// The shape of the requests of a bench.
struct WorkloadConfig {
  // The first request of a conversation, without its prefix.
  LengthDistribution prompt_tokens{64, 256};
  LengthDistribution output_tokens{16, 128};
  // If set, request i has the lengths of its entry i, modulo its size.
  std::shared_ptr<const std::vector<TraceEntry>> trace;
  // Requests per conversation, or per branch of its tree: the prompt of each
  // but the first is the prompt and output of the previous one plus
  // `turn_tokens` new tokens.
  LengthDistribution turns{1, 1};
  LengthDistribution turn_tokens{64, 256};
  // The tree of each conversation (bench_tree.h). Without levels it is a line.
  uint32_t branches = 1;
  uint32_t branch_levels = 0;
  // If not 0, the conversations of a run form this many groups in turn, and
  // each begins with its group's prefix of random tokens.
  uint32_t prefix_groups = 0;
  LengthDistribution prefix_tokens{256, 256};
  // Names the end of the prefix, and of what branches share, in snapshot_at.
  bool snapshot_prefix = false;
  // Every request has it.
  std::string cache_key;
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
  // drawn uniformly from the vocabulary without its special tokens, first those
  // of the prefix. Every
  // 1/cancel_fraction-th request is to be cancelled, after a uniform number of
  // tokens below its length (a request of one token: after that one).
  WorkItem Make(uint64_t index) const { return MakeTurn(index, 0, {}); }

  // Turns of each branch of conversation `index`, >= 1.
  uint32_t Turns(uint64_t index) const;

  // The requests of conversation `index`.
  RequestTree Tree(uint64_t index) const;

  // Most requests of a conversation that can be open at a time, >= 1.
  uint64_t MostOpen() const;

  // Request `turn` of the tree of conversation `index`. `history` is the prompt
  // and the output of its parent, empty for request 0.
  WorkItem MakeTurn(uint64_t index, uint32_t turn,
                    const std::vector<uint32_t>& history) const;

 private:
  using Ids = google::protobuf::RepeatedField<uint32_t>;

  Workload(const WorkloadConfig& config, const v1::ModelInfo& model);

  // Adds random ids until there are `size`.
  void Fill(uint64_t size, BenchDraws* draws, Ids* ids) const;
  // Adds the prefix of the conversation's group.
  void AddPrefix(uint64_t index, Ids* ids) const;

  WorkloadConfig config_;
  std::optional<uint32_t> bos_;
  // Ids that prompts do not contain, ascending and without repeats.
  std::vector<uint32_t> special_;
  uint32_t vocab_size_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_WORKLOAD_H_
