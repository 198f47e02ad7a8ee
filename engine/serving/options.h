#ifndef RECURVE_ENGINE_SERVING_OPTIONS_H_
#define RECURVE_ENGINE_SERVING_OPTIONS_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

struct EngineOptions {
  int64_t max_num_seqs = 32;  // sequences that hold memory at once
  // Tokens in a step. 0, which LoadModel replaces: DefaultBatchedTokens.
  int64_t max_num_batched_tokens = 512;
  // Prompt tokens of one sequence in a step. 0, which LoadModel replaces:
  // DefaultChunkTokens.
  int64_t max_chunk_tokens = 512;
  // How many times longer than alone sequences that decode may wait for a
  // token, on average, while long prompts are computed; 0: no limit.
  // prompt_pacer.h
  double max_decode_slowdown = 0;
  int64_t max_model_len = 0;           // tokens of a sequence; 0: as the model
  int64_t max_queued_requests = 1024;  // waiting for their first admission
  // A client that reads nothing for so long while its buffer is full is ended.
  std::chrono::milliseconds stalled_client_timeout{60'000};
  // Fills memory with NaN when a sequence gives it back. For tests.
  bool poison_released = false;

  // InvalidArgument naming the option and its limits. 0 must have been
  // replaced.
  absl::Status Validate() const;
  // That prompts get on whatever else runs, for a model that computes them by
  // `multiple` tokens on `device`. InvalidArgument, likewise.
  absl::Status ValidateMultiple(int64_t multiple,
                                absl::string_view device) const;
};

// Tokens in a step if nobody says. On a GPU as many cost a stream some
// milliseconds more between two tokens, and are a fifth to a third more tokens
// in all (docs/gpu-performance.md#tokens-a-step); on a CPU they would be a
// second. Where all sequences decode there is room for 64 tokens of a prompt.
constexpr int64_t DefaultBatchedTokens(bool gpu, int64_t max_num_seqs) {
  const int64_t tokens = gpu ? 2048 : 512;
  const int64_t least = max_num_seqs + 64;
  return tokens > least ? tokens : least;
}

// Tokens of a prompt that finds room in any step, whatever else runs: it is one
// of the sequences, of which each of the others may generate a token.
constexpr int64_t RoomForWholePrompt(int64_t max_num_batched_tokens,
                                     int64_t max_num_seqs) {
  return max_num_batched_tokens - (max_num_seqs - 1);
}

// Prompt tokens of one sequence in a step if nobody says: all of the step. But
// what is computed as a whole has to find room beside the tokens that all
// others may generate, or it would wait for their end, and those behind it,
// too. Where these would leave it less than half of a step, it has half.
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
