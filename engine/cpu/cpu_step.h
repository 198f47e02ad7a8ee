#ifndef RECURVE_ENGINE_CPU_CPU_STEP_H_
#define RECURVE_ENGINE_CPU_CPU_STEP_H_

#include <cstdint>

#include "base/thread_pool.h"
#include "engine/program/activations.h"
#include "engine/program/program.h"
#include "engine/program/step.h"
#include "kernels/common/paged_cache.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// What a SequenceOperation sees of the step that the CPU runs: pointers into
// the executor, valid during Run.
class CpuStep {
 public:
  virtual ~CpuStep() = default;

  // Tables for the step's rows, [T, angles].
  struct Position {
    LrpeType type;
    const float* cos;
    const float* sin;
  };
  // A layer's part of page or slot i begins at data + i · stride.
  struct Pages {
    float* data;
    int64_t stride;
  };
  struct States {
    float* data;
    int64_t stride;
  };

  virtual const StepBatch& batch() const = 0;
  // [B] rows of each sequence that are a whole prompt, else 0.
  virtual const int32_t* whole_prompt_rows() const = 0;
  virtual Activations View(const Slice& slice) const = 0;
  virtual const float* vector(VectorId id) const = 0;  // null for none
  virtual Position position(PositionId id) const = 0;
  virtual Pages pages(PagesId id) const = 0;
  virtual States states(StateId id) const = 0;
  virtual ThreadPool& threads() const = 0;

  // A layer's pages with the rows of the step.
  PagedCacheView cache(PagesId id) const {
    const Pages layer = pages(id);
    const StepBatch& step = batch();
    return {layer.data,
            layer.stride,
            step.page_table.data(),
            step.page_table_stride,
            step.row_sequence.data(),
            step.positions.data(),
            step.num_tokens()};
  }
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CPU_CPU_STEP_H_
