#ifndef RECURVE_ENGINE_PROGRAM_PLAN_H_
#define RECURVE_ENGINE_PROGRAM_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/program/device.h"
#include "engine/program/program.h"

namespace recurve {

// How a device holds and runs a program: types, places and bytes of all memory,
// and, for each form of step, the launches. Everything that an executor would
// otherwise have to guess from the order of calls is decided here, before any
// weight is loaded, by pure functions: the loader sizes memory by the same plan
// that the executor allocates, and a person can read it (print_plan.h).
struct Plan {
  struct Matrix {
    DType type;
    int64_t outputs;  // with the zeros of padded parts
    int64_t inputs;
    // Rows and columns in memory.
    int64_t padded_outputs;
    int64_t padded_inputs;

    int64_t bytes() const {
      return padded_outputs * padded_inputs *
             static_cast<int64_t>(SizeOf(type));
    }
  };
  struct Table {
    DType type;
    // Whose rows are the table's, of a tied head, and which is read in its
    // place: it is held once. -1: none.
    int32_t matrix;
  };
  // Columns [first, first + cols) of a buffer.
  struct Place {
    int32_t buffer;
    int64_t first;
    int64_t cols;
  };

  Device device;
  std::vector<Matrix> matrices;
  std::vector<Table> tables;
  // The type of all matrices, if they share one.
  std::optional<DType> matrix_type;
  int64_t weight_bytes = 0;  // of what is held

  std::vector<Place> values;
  std::vector<int64_t> buffers;  // columns of each, float32

  // Elements from the start of a page to each layer's part.
  std::vector<int64_t> pages;
  // Elements [first, first + elements) of a slot.
  struct State {
    int64_t first;
    int64_t elements;  // without padding
  };
  std::vector<State> states;
  int64_t page_elements = 0;
  int64_t slot_elements = 0;
  int64_t page_bytes = 0;
  int64_t slot_bytes = 0;

  // ModelInfo.
  int64_t chunk_multiple = 1;
  bool whole_prompts = false;

  // "bfloat16", or "mixed".
  std::string weight_dtype() const;
  // Bytes of activations for each row of the largest step.
  int64_t row_bytes() const;
  // Columns of the widest input of a product, as it is held.
  int64_t max_inputs() const;
  Place PlaceOf(const Slice& slice) const;
};

// The columns at which the device's values begin are multiples of this.
int64_t ColumnMultiple(const Device& device);

Plan Lower(const Program& program, const Device& device);

// What the launches of a step depend on, in addition to the plan.
struct StepForm {
  // Every sequence has one token of TokenKind::kStep.
  bool decode = false;
  int64_t rows = 0;  // of a decode step, a power of two
  // Every row is multiplied as those of steps are.
  bool all_steps = false;
  // Chains of products may be one launch.
  bool chains = true;
};

// One launch, or the few of one fused kernel and what prepares it: operations
// [first, first + count) of the program.
struct Launch {
  enum class Form {
    kOne,        // an operation
    kNormed,     // a product that computes the norm before it
    kGatedUnit,  // norm, product, gate, product: residual += ...
    kChain,      // a product that adds to the residual, the gated unit after
                 // it, and perhaps the next norm and its product
  };
  Form form = Form::kOne;
  int32_t first = 0;
  int32_t count = 1;
  // Its input, that of its first product, is rounded to the type of all
  // matrices, and so is its output.
  bool reads_rounded = false;
  bool writes_rounded = false;
  // kGatedUnit and HeadOp: a product computes the norm.
  bool fuses_norm = false;
  // SequenceOp: the matrix that it fetches ahead into the cache; -1: none.
  MatrixId prefetch;
  // kChain: the operation of sequences whose output it multiplies; -1: none.
  int32_t mixed_by = -1;

  bool operator==(const Launch&) const = default;
};

// The launches of a step, in order, which run each operation once.
std::vector<Launch> PlanLaunches(const Program& program, const Plan& plan,
                                 const StepForm& form);

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_PLAN_H_
