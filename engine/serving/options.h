#ifndef RECURVE_ENGINE_SERVING_OPTIONS_H_
#define RECURVE_ENGINE_SERVING_OPTIONS_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

struct EngineOptions {
  int64_t max_num_seqs = 32;  // sequences that hold memory at a time
  // Tokens per step. 0, which LoadModel replaces: DefaultBatchedTokens.
  int64_t max_num_batched_tokens = 512;
  // Prompt tokens of one sequence per step. 0, which LoadModel replaces:
  // DefaultChunkTokens.
  int64_t max_chunk_tokens = 512;
  // Maximum slowdown of decoding sequences, on average, while long prompts are
  // computed, relative to their time per token without them; 0: no limit.
  // prompt_pacer.h
  double max_decode_slowdown = 0;
  int64_t max_model_len = 0;           // tokens of a sequence; 0: the model's
                                       // limit
  int64_t max_queued_requests = 1024;  // waiting for their first admission
  // A client that reads nothing for this long while its buffer is full is
  // ended.
  std::chrono::milliseconds stalled_client_timeout{60'000};
  // Keeps snapshots of prompts, for later prompts that begin alike.
  bool prefix_cache = false;
  // These may be of tokens that were computed otherwise than as part of a
  // prompt, for example generated.
  bool reuse_generated = false;
  // A shorter prompt keeps no end (PromptEnds): to compute it again costs less
  // than to save the ends of all prompts.
  int64_t min_end_tokens = 512;
  // Host memory that these leave to preempted sequences.
  int64_t preemption_bytes = 0;
  // Host memory, of the snapshots', that states with names may take. 0, which
  // LoadModel replaces by half of it: there are none.
  int64_t state_bytes = 0;
  // Fills memory with NaN when a sequence gives it back. For tests.
  bool poison_released = false;

  // InvalidArgument naming the option and its limits. Values of 0 must have
  // been replaced.
  absl::Status Validate() const;
  // Checks that prompts make progress whatever else runs, for a model that
  // computes them by `multiple` tokens on `device`. InvalidArgument, likewise.
  absl::Status ValidateMultiple(int64_t multiple,
                                absl::string_view device) const;
};

// Default tokens per step. On a GPU this many add a few milliseconds between
// two tokens of a stream, and raise total throughput by a fifth to a third
// (docs/gpu-performance.md#tokens-a-step); on a CPU they would take a second.
// When all sequences decode there is room for 64 tokens of a prompt.
constexpr int64_t DefaultBatchedTokens(bool gpu, int64_t max_num_seqs) {
  const int64_t tokens = gpu ? 2048 : 512;
  const int64_t least = max_num_seqs + 64;
  return tokens > least ? tokens : least;
}

// Tokens of a prompt that fit into any step, whatever else runs: the prompt is
// one of the sequences, and each of the others may generate a token.
constexpr int64_t RoomForWholePrompt(int64_t max_num_batched_tokens,
                                     int64_t max_num_seqs) {
  return max_num_batched_tokens - (max_num_seqs - 1);
}

// Default prompt tokens of one sequence per step: the whole step. But a prompt
// computed as a whole must fit alongside the tokens that all other sequences
// may generate, or it, and those after it, would wait for their end. If these
// would leave it less than half of a step, it gets half.
constexpr int64_t DefaultChunkTokens(bool whole_prompts, int64_t multiple,
                                     int64_t max_num_batched_tokens,
                                     int64_t max_num_seqs) {
  if (!whole_prompts) return max_num_batched_tokens;
  const int64_t room = RoomForWholePrompt(max_num_batched_tokens, max_num_seqs);
  const int64_t half = (max_num_batched_tokens + 1) / 2;
  const int64_t tokens = room > half ? room : half;
  return tokens > multiple ? tokens : multiple;
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_OPTIONS_H_
