// The batches of steps that are measured.
#ifndef RECURVE_BENCH_STEP_BATCHES_H_
#define RECURVE_BENCH_STEP_BATCHES_H_

#include <cstdint>

#include "engine/program/step.h"

namespace recurve {

// `batch` sequences of `context` tokens, of which the last `count` are of this
// step: generated, or else a prompt. With `pages` each has pages of its own,
// from 1 on, and slots are from 1 on.
StepBatch MakeBatch(int64_t batch, int64_t context, int64_t count,
                    bool generated, int64_t vocab, bool pages);

// And `count` more sequences: prompts of `prompt` tokens.
StepBatch WithPrompts(StepBatch step, int64_t count, int64_t prompt,
                      int64_t vocab);

}  // namespace recurve

#endif  // RECURVE_BENCH_STEP_BATCHES_H_
