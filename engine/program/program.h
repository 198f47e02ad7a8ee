#ifndef RECURVE_ENGINE_PROGRAM_PROGRAM_H_
#define RECURVE_ENGINE_PROGRAM_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor_view.h"
#include "engine/program/position.h"
#include "kernels/common/activation.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

class SequenceOperation;

// A model's forward pass as data: weights, values and a flat list of operations
// on them, the same for every device. A model emits it once, at load
// (engine/models/emit.h); Lower decides how a device runs it (plan.h); an
// Executor runs it over a batch.
//
// No operation knows which one came before it: fusion, which needs
// that, looks at the list.
//
// Thread safety: immutable once it is built.

// Indices into the lists of a Program; -1: none.
struct MatrixId {
  int32_t value = -1;
  bool operator==(const MatrixId&) const = default;
};
struct VectorId {
  int32_t value = -1;
};
struct TableId {
  int32_t value = -1;
};
struct PositionId {
  int32_t value = -1;
};
struct PagesId {
  int32_t value = -1;
};
struct StateId {
  int32_t value = -1;
};
struct ValueId {
  int32_t value = -1;
  bool operator==(const ValueId&) const = default;
};

// The rows of `parts`, each [n_i, inputs], one below the other.
struct MatrixSource {
  std::vector<MatrixPart> parts;
  // Rows of zeros follow each part, up to what Value::padded gives the columns
  // that it writes.
  bool padded = false;
};

// Memory of each sequence that one layer keeps in pages: elements of a page in
// the cache's type, by the layout of the device.
struct PagesSource {
  int64_t cpu_elements = 0;
  int64_t gpu_elements = 0;
};

// Memory of each sequence that one layer keeps in a slot: float32.
struct StateSource {
  int64_t elements = 0;
  // Only where prompts are computed in chunks (Plan::chunk_multiple above 1);
  // elsewhere the slot has no such part.
  bool with_chunks = false;
};

// Activations: a row for each token of the step.
struct Value {
  std::string name;
  // Columns, in `pieces` equal pieces. If `padded`, a piece begins where the
  // device can address it, and what writes the value writes the columns
  // between, too: zeros.
  int64_t cols = 0;
  int64_t pieces = 1;
  bool padded = false;
  // Whose memory it shares, from the first column on; -1: none. Only one of the
  // two is needed at a time.
  ValueId over;
  // 0: it lives through the step. Else the region of the program in which it
  // lives; regions share memory.
  int32_t region = 0;
};

// Columns [first, first + cols) of a value.
struct Slice {
  static constexpr int64_t kAll = -1;  // with the padding

  ValueId value;
  int64_t first = 0;
  int64_t cols = kAll;

  bool operator==(const Slice&) const = default;
};

// y = x · rsqrt(mean(x²) + eps) · weight over each of `groups` parts of a row,
// or LayerNorm over the whole row.
enum class NormKind { kRms, kLayer };
struct NormWeights {
  NormKind kind = NormKind::kRms;
  int64_t groups = 1;  // 1 for kLayer
  double eps = 0;      // added to the mean square, or to the variance
  VectorId weight;     // [cols], or none
  VectorId bias;       // [cols], or none; kLayer only
};

// out = scale · table[token]
struct EmbedOp {
  TableId table;
  float scale = 1;
  Slice out;
};
// Every row of out = values.
struct FillOp {
  VectorId values;
  Slice out;
};
// `out` may be `in`.
struct NormOp {
  Slice in;
  NormWeights norm;
  Slice out;
};
// out += in.
struct AddOp {
  Slice in;
  Slice out;
};
// out = in · matrixᵀ, or out += that.
struct ProjectOp {
  Slice in;
  MatrixId matrix;
  Slice out;
  bool add = false;
};
// out = act(in[:, :n]) ⊙ in[:, n:]; `in` has two padded pieces.
struct GluOp {
  Slice in;
  Activation activation = Activation::kNone;
  Slice out;
};
// out = norm(in) ⊙ act(gate), or norm(in ⊙ act(gate)); kRms.
struct GatedNormOp {
  Slice in;
  Slice gate;
  Activation activation = Activation::kNone;
  bool gate_after_norm = false;
  NormWeights norm;
  Slice out;
};
// out[h] = (1/rank) Σ_r a[r,h] · b[r]: a [T, rank·heads], b [T, rank·dim].
struct ExpandOp {
  Slice a;
  Slice b;
  int64_t rank = 0;
  int64_t num_heads = 0;
  Slice out;  // [T, heads·dim]
};
// Normalises the rows whose logits are wanted, multiplies them by the head, and
// draws the samples. The last operation, and the only one of its kind.
struct HeadOp {
  Slice in;
  NormWeights norm;
  MatrixId matrix;
};
// What reads or writes the memory of sequences: sequence_operation.h.
struct SequenceOp {
  std::shared_ptr<const SequenceOperation> operation;
};

using Operation = std::variant<EmbedOp, FillOp, NormOp, AddOp, ProjectOp, GluOp,
                               GatedNormOp, ExpandOp, SequenceOp, HeadOp>;

struct Program {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // inputs of the head

  // Weights. They are views into a checkpoint, which must exist until an
  // executor has loaded them; nothing reads them afterwards.
  std::vector<MatrixSource> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<TensorView> tables;
  std::vector<PositionConfig> positions;

  std::vector<PagesSource> pages;
  std::vector<StateSource> states;
  std::vector<Value> values;
  std::vector<Operation> operations;
  std::vector<std::string> places;  // of each operation: "layer 3", say

  // Some layer processes prompts as a whole.
  bool whole_prompts = false;
};

// The name of an operation: "norm", "project", ...
std::string NameOf(const Operation& operation);
// What it reads and writes. A product that adds reads its output, too.
std::vector<Slice> ReadsOf(const Operation& operation);
// A slice of no value for HeadOp.
Slice OutputOf(const Operation& operation);

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_PROGRAM_H_
