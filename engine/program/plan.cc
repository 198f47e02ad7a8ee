#include "engine/program/plan.h"

#include <algorithm>
#include <numeric>

#include "engine/program/sequence_operation.h"

namespace recurve {
namespace {

// Columns of 16-bit matrices are padded to a multiple that all kernels support,
// including LaunchProductChain; their outputs to one with which cuBLASLt may
// use all of its own.
constexpr int64_t kGpuColumns = 64;
constexpr int64_t kGpuFloatColumns = 4;
constexpr int64_t kGpuOutputs = 16;
constexpr int64_t kCpuOutputs = 16;  // PackedMatrix
// A layer's part of a page and of a slot begins at a multiple of 256 bytes.
constexpr int64_t kGpuPageElements = 128;
constexpr int64_t kGpuSlotElements = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The type in which tensors of these types are held together.
DType HeldType(const std::vector<MatrixPart>& parts, const Device& device) {
  const auto all = [&](DType type) {
    return std::all_of(parts.begin(), parts.end(), [&](const MatrixPart& part) {
      return part.tensor.dtype == type;
    });
  };
  if (device.weights) return *device.weights;
  if (all(DType::kBFloat16)) return DType::kBFloat16;
  return device.gpu && all(DType::kFloat16) ? DType::kFloat16 : DType::kFloat32;
}

Plan::Matrix PlanMatrix(const MatrixSource& source, const Device& device) {
  Plan::Matrix matrix;
  matrix.type = HeldType(source.parts, device);
  matrix.outputs = 0;
  for (const MatrixPart& part : source.parts) {
    matrix.outputs += source.padded
                          ? RoundUp(part.rows(), ColumnMultiple(device))
                          : part.rows();
  }
  matrix.inputs = source.parts[0].cols();
  const bool wide = matrix.type == DType::kFloat32;
  matrix.padded_inputs =
      device.gpu ? RoundUp(matrix.inputs, wide ? kGpuFloatColumns : kGpuColumns)
                 : matrix.inputs;
  matrix.padded_outputs = RoundUp(matrix.outputs, !device.gpu ? kCpuOutputs
                                                  : wide      ? 1
                                                              : kGpuOutputs);
  return matrix;
}

// A table is only looked up: the CPU holds it as it is stored, or smaller.
DType PlanTable(const TensorView& table, const Device& device) {
  const DType held = HeldType({table}, device);
  return device.gpu || held == DType::kBFloat16 ? held : table.dtype;
}

// The matrix that is this table, or -1. Only on the CPU, whose packed matrices
// can be read by row; its types have the same values.
int32_t MatrixOf(const TensorView& table, const Program& program,
                 const Device& device) {
  if (device.gpu || table.data == nullptr) return -1;
  for (size_t i = 0; i < program.matrices.size(); ++i) {
    const MatrixSource& source = program.matrices[i];
    if (source.padded || source.parts.size() != 1) continue;
    const MatrixPart& part = source.parts[0];
    if (part.tensor.data == table.data && part.tensor.dtype == table.dtype &&
        part.tensor.shape == table.shape && part.row_order.empty() &&
        part.col_order.empty()) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

void PlanWeights(const Program& program, Plan* plan) {
  for (const MatrixSource& source : program.matrices) {
    plan->matrices.push_back(PlanMatrix(source, plan->device));
    plan->weight_bytes += plan->matrices.back().bytes();
  }
  for (const std::vector<float>& vector : program.vectors) {
    plan->weight_bytes += static_cast<int64_t>(vector.size() * sizeof(float));
  }
  for (const TensorView& table : program.tables) {
    plan->tables.push_back({PlanTable(table, plan->device),
                            MatrixOf(table, program, plan->device)});
    if (plan->tables.back().matrix >= 0) continue;
    plan->weight_bytes +=
        table.num_elements() *
        static_cast<int64_t>(SizeOf(plan->tables.back().type));
  }
  const DType type = plan->matrices.front().type;
  if (std::all_of(plan->matrices.begin(), plan->matrices.end(),
                  [&](const auto& matrix) { return matrix.type == type; })) {
    plan->matrix_type = type;
  }
}

// Values that last have a buffer each; those of all regions share one, each
// region from its first column on.
void PlanValues(const Program& program, Plan* plan) {
  const int64_t multiple = ColumnMultiple(plan->device);
  int32_t shared = -1;
  int32_t region = 0;
  int64_t column = 0;
  for (const Value& value : program.values) {
    const int64_t piece = value.cols / value.pieces;
    const int64_t cols =
        value.pieces * (value.padded ? RoundUp(piece, multiple) : piece);
    if (value.over.value >= 0) {
      Plan::Place place = plan->values[value.over.value];
      place.cols = cols;
      plan->values.push_back(place);
      continue;
    }
    if (value.region == 0) {
      plan->values.push_back(
          {static_cast<int32_t>(plan->buffers.size()), 0, cols});
      plan->buffers.push_back(RoundUp(cols, multiple));
      continue;
    }
    if (shared < 0) {
      shared = static_cast<int32_t>(plan->buffers.size());
      plan->buffers.push_back(0);
    }
    if (value.region != region) column = 0;
    region = value.region;
    plan->values.push_back({shared, column, cols});
    column += RoundUp(cols, multiple);
    plan->buffers[shared] = std::max(plan->buffers[shared], column);
  }
}

void PlanSequenceMemory(const Program& program, Plan* plan) {
  const bool gpu = plan->device.gpu;
  for (const PagesSource& pages : program.pages) {
    plan->pages.push_back(plan->page_elements);
    plan->page_elements += gpu ? RoundUp(pages.gpu_elements, kGpuPageElements)
                               : pages.cpu_elements;
  }
  for (const StateSource& state : program.states) {
    const bool has = !state.with_chunks || plan->chunk_multiple > 1;
    const int64_t elements = has ? state.elements : 0;
    plan->states.push_back({plan->slot_elements, elements});
    plan->slot_elements += gpu ? RoundUp(elements, kGpuSlotElements) : elements;
  }
  plan->page_bytes =
      plan->page_elements * static_cast<int64_t>(SizeOf(plan->device.pages));
  plan->slot_bytes = plan->slot_elements * static_cast<int64_t>(sizeof(float));
}

}  // namespace

std::string Plan::weight_dtype() const {
  return matrix_type ? std::string(Name(*matrix_type)) : "mixed";
}

int64_t Plan::row_bytes() const {
  return static_cast<int64_t>(sizeof(float)) *
         std::accumulate(buffers.begin(), buffers.end(), int64_t{0});
}

int64_t Plan::max_inputs() const {
  int64_t most = 0;
  for (const Matrix& matrix : matrices)
    most = std::max(most, matrix.padded_inputs);
  return most;
}

Plan::Place Plan::PlaceOf(const Slice& slice) const {
  Place place = values[slice.value.value];
  place.first += slice.first;
  if (slice.cols != Slice::kAll) {
    place.cols = slice.cols;
  } else {
    place.cols -= slice.first;
  }
  return place;
}

int64_t ColumnMultiple(const Device& device) {
  return device.gpu ? kGpuColumns : 1;
}

Plan Lower(const Program& program, const Device& device) {
  Plan plan;
  plan.device = device;
  PlanWeights(program, &plan);
  PlanValues(program, &plan);
  plan.whole_prompts = program.whole_prompts;
  for (const Operation& operation : program.operations) {
    if (const auto* op = std::get_if<SequenceOp>(&operation)) {
      plan.chunk_multiple =
          std::lcm(plan.chunk_multiple,
                   op->operation->ChunkMultiple(device, plan.matrix_type));
    }
  }
  PlanSequenceMemory(program, &plan);
  return plan;
}

}  // namespace recurve
