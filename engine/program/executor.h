#ifndef RECURVE_ENGINE_PROGRAM_EXECUTOR_H_
#define RECURVE_ENGINE_PROGRAM_EXECUTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/program/plan.h"
#include "engine/program/step.h"
#include "kv_cache/cache_storage.h"

namespace recurve {

// Holds a program's weights and the memory of its sequences on one device, and
// runs it over batches, as its plan says.
//
// Order of calls: Load; AllocateCache once; AllocateHost, perhaps; then, for
// each step, Begin and End. If runs_ahead(), the next step may begin before the
// last one ends.
//
// A row's result depends on that row, its sequence and its position only.
//
// Thread safety: one thread at a time.
class Executor : public CacheStorage {
 public:
  virtual absl::string_view name() const = 0;
  virtual std::string weight_dtype() const = 0;
  virtual absl::string_view state_dtype() const { return "float32"; }
  virtual absl::string_view kv_dtype() const = 0;
  virtual const Plan& plan() const = 0;

  // Copies the weights; the checkpoint is not used afterwards.
  virtual absl::Status Load() = 0;
  // Allocates pages 0 ... num_pages and slots 0 ... num_slots, all zero; number
  // 0 of each is the sink for padding rows.
  virtual absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) = 0;
  // Host memory for Save and Restore: blocks 1 ... num_blocks of `block_bytes`
  // each. After AllocateCache; without this call there are no blocks.
  virtual absl::Status AllocateHost(int32_t num_blocks,
                                    int64_t block_bytes) = 0;

  // Begins a step; `batch` lives until it ends.
  virtual absl::Status Begin(const StepBatch& batch) = 0;
  // Waits for the earliest step that was begun and not ended, and returns its
  // results. An error is a failure of the device.
  virtual absl::Status End(StepOutput* output) = 0;

  // To be run once each, in order, after the cache is allocated and before
  // there is a sequence, so that no later step is slower because it is the
  // first of its kind. They write only page 0 and slot 0, the sinks.
  virtual std::vector<StepBatch> WarmUpSteps() const { return {}; }
  // Whether a step may begin before the one before it ends.
  virtual bool runs_ahead() const { return false; }
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_EXECUTOR_H_
