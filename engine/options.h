#ifndef RECURVE_ENGINE_OPTIONS_H_
#define RECURVE_ENGINE_OPTIONS_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"

namespace recurve {

struct EngineOptions {
  int64_t max_num_seqs = 32;             // sequences that hold memory at once
  int64_t max_num_batched_tokens = 512;  // tokens in a step
  int64_t max_chunk_tokens = 512;  // prompt tokens of one sequence in a step
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

  // InvalidArgument naming the option and its limits.
  absl::Status Validate() const;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_OPTIONS_H_
