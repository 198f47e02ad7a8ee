#ifndef RECURVE_ENGINE_PROGRAM_SEQUENCE_OPERATION_H_
#define RECURVE_ENGINE_PROGRAM_SEQUENCE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "engine/program/device.h"
#include "engine/program/program.h"

namespace recurve {

class CpuStep;
class CudaOperations;
struct CudaOperationLimits;

// An operation of a layer that mixes the tokens of a sequence: it reads and
// writes the sequence's pages or state. Each kind has a folder under
// engine/models, with the operation on every device.
//
// Thread safety: immutable.
class SequenceOperation {
 public:
  virtual ~SequenceOperation() = default;

  // Names the kind: operations of one name share a CudaOperations.
  virtual absl::string_view name() const = 0;
  virtual std::vector<Slice> inputs() const = 0;
  virtual Slice output() const = 0;
  // What it overwrites while it runs; of no value if it needs no such space.
  virtual Slice workspace() const { return {}; }

  // On a GPU: the 16-bit type in which it can write its output, for steps of
  // decoding or others, with pages of that type. Absent: float32 only.
  virtual std::optional<DType> RoundedOutput(bool /*decode*/,
                                             DType /*pages*/) const {
    return std::nullopt;
  }
  // Whether it fetches the next product's weights ahead (Launch::prefetch).
  virtual bool Prefetches() const { return false; }
  // On that device, with all matrices in `matrices` (absent: of several types):
  // a step's tokens of a sequence end at a multiple of this, or with its last.
  virtual int64_t ChunkMultiple(const Device& /*device*/,
                                std::optional<DType> /*matrices*/) const {
    return 1;
  }

  // Runs on all rows of the step; defines the result.
  virtual void Run(const CpuStep& step) const = 0;
#ifdef RECURVE_HAVE_CUDA
  // For all operations of this kind.
  virtual std::unique_ptr<CudaOperations> MakeCudaOperations(
      const CudaOperationLimits& limits) const = 0;
#endif
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_SEQUENCE_OPERATION_H_
