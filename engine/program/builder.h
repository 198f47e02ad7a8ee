#ifndef RECURVE_ENGINE_PROGRAM_BUILDER_H_
#define RECURVE_ENGINE_PROGRAM_BUILDER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace recurve {

// Builds a Program, operation by operation. Not thread-safe.
class ProgramBuilder {
 public:
  ProgramBuilder(int64_t vocab_size, int64_t hidden_size) {
    program_.vocab_size = vocab_size;
    program_.hidden_size = hidden_size;
  }

  // Weights and memory. Equal positions share an id.
  MatrixId AddMatrix(std::vector<MatrixPart> parts, bool padded = false);
  VectorId AddVector(std::vector<float> values);
  TableId AddTable(TensorView table);
  PositionId AddPosition(const PositionConfig& position);
  PagesId AddPages(PagesSource pages);
  StateId AddState(StateSource state);
  void UseWholePrompts() { program_.whole_prompts = true; }

  // A value that lives through the step.
  ValueId AddLasting(std::string name, int64_t cols);
  // The values of a region, which another region may overwrite. Operations and
  // values from here on belong to `place`, as "layer 3".
  void BeginRegion(std::string place);
  ValueId AddValue(std::string name, int64_t cols, int64_t pieces = 1,
                   bool padded = false);
  // In the memory of `other`, of the same region.
  ValueId AddOver(std::string name, int64_t cols, ValueId other);

  void Add(Operation operation);

  // May be called once.
  Program Build() { return std::move(program_); }

 private:
  ValueId AddValue(Value value);

  Program program_;
  int32_t region_ = 0;
  std::string place_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_BUILDER_H_
