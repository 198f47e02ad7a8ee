// PlanLaunches: which operations are fused for a form of step. The measured
// gains behind each rule are in docs/kernels/matmul.md.
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/program/plan.h"
#include "engine/program/sequence_operation.h"
#include "kernels/matmul/decode_matmul_plan.h"
#include "kernels/matmul/gated_matmul_plan.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/norm/norm_order.h"

namespace recurve {
namespace {

// Maximum rows of a decode step during whose attention the next weights are
// prefetched. With one row, the blocks of the next product already have its
// weights by then, so the product after it is prefetched. (Measured. With two
// and four rows it makes no difference; with many rows there is no spare
// bandwidth.)
constexpr int64_t kPrefetchRows = 64;

// A norm, the product of gate and features, the gate, and the product that adds
// to the residual: operations [i, i + 4).
struct GatedUnit {
  const NormOp* norm;
  const ProjectOp* up;
  const GluOp* gate;
  const ProjectOp* down;
};
constexpr int32_t kGatedUnitOps = 4;

class Planner {
 public:
  Planner(const Program& program, const Plan& plan, const StepForm& form)
      : program_(program),
        plan_(plan),
        form_(form),
        rounded_(program.values.size(), false) {
    // 16-bit types only: there is nothing to round to otherwise.
    if (plan.device.gpu && plan.matrix_type &&
        *plan.matrix_type != DType::kFloat32) {
      type_ = plan.matrix_type;
    }
  }

  std::vector<Launch> Plan() {
    for (int32_t i = 0; i < Count();) {
      const Launch& launch = launches_.emplace_back(At(i));
      for (const int32_t end = i + launch.count; i < end; ++i) {
        const ValueId out = OutputOf(program_.operations[i]).value;
        if (out.value >= 0) rounded_[out.value] = launch.writes_rounded;
      }
    }
    return std::move(launches_);
  }

 private:
  int32_t Count() const {
    return static_cast<int32_t>(program_.operations.size());
  }
  template <typename Op>
  const Op* As(int32_t i) const {
    return i < Count() ? std::get_if<Op>(&program_.operations[i]) : nullptr;
  }
  int64_t Cols(const Slice& slice) const { return plan_.PlaceOf(slice).cols; }
  const Plan::Matrix& MatrixOf(const ProjectOp& op) const {
    return plan_.matrices[op.matrix.value];
  }

  Launch At(int32_t i) {
    Launch launch;
    launch.first = i;
    if (const auto* const project = As<ProjectOp>(i)) {
      launch.reads_rounded = rounded_[project->in.value.value];
      MakeChain(i, *project, &launch);
      return launch;
    }
    if (const auto unit = GatedUnitAt(i); unit && FusesGatedUnit(*unit)) {
      launch.form = Launch::Form::kGatedUnit;
      launch.count = kGatedUnitOps;
      launch.fuses_norm = FusesNorm(unit->norm->in, unit->norm->norm);
      return launch;
    }
    if (const auto* const norm = As<NormOp>(i)) {
      const auto* const next = As<ProjectOp>(i + 1);
      if (next != nullptr && !(norm->in.value == norm->out.value) &&
          next->in == norm->out && IsOnlyReader(i, i + 1) &&
          FusesNorm(norm->in, norm->norm)) {
        launch.form = Launch::Form::kNormed;
        launch.count = 2;
        launch.fuses_norm = true;
        return launch;
      }
    }
    if (const auto* const head = As<HeadOp>(i)) {
      launch.fuses_norm = FusesNorm(head->in, head->norm);
      return launch;
    }
    if (const auto* const op = As<SequenceOp>(i);
        op != nullptr && op->operation->Prefetches()) {
      launch.prefetch = PrefetchAt(i);
    }
    const Slice out = OutputOf(program_.operations[i]);
    launch.writes_rounded = Rounds(i, out);
    return launch;
  }

  // --- What is rounded ---

  // Whether two slices of one value share columns.
  bool Overlap(const Slice& a, const Slice& b) const {
    if (!(a.value == b.value)) return false;
    const auto p = plan_.PlaceOf(a);
    const auto q = plan_.PlaceOf(b);
    return p.first < q.first + q.cols && q.first < p.first + p.cols;
  }
  // Whether `a` has all columns of `b`.
  bool Covers(const Slice& a, const Slice& b) const {
    if (!(a.value == b.value)) return false;
    const auto p = plan_.PlaceOf(a);
    const auto q = plan_.PlaceOf(b);
    return p.first <= q.first && q.first + q.cols <= p.first + p.cols;
  }

  // Calls visit(j) for each operation that reads some of what operation i
  // writes, until all of it is written again. Values that share memory
  // (Value::over) are not needed at the same time.
  template <typename Visit>
  void ForEachReader(int32_t i, Visit visit) const {
    const Slice written = OutputOf(program_.operations[i]);
    for (int32_t j = i + 1; j < Count(); ++j) {
      const std::vector<Slice> reads = ReadsOf(program_.operations[j]);
      if (std::any_of(reads.begin(), reads.end(), [&](const Slice& slice) {
            return Overlap(slice, written);
          })) {
        visit(j);
      }
      if (Covers(OutputOf(program_.operations[j]), written)) break;
    }
  }
  bool IsOnlyReader(int32_t i, int32_t reader) const {
    bool only = true;
    ForEachReader(i, [&](int32_t j) { only &= j == reader; });
    return only;
  }

  // Whether operation i writes its output in the type of the matrices, because
  // only products read it.
  bool Rounds(int32_t i, const Slice& out) const {
    // cuBLASLt must not read the columns after it, so an odd multiple of 32 is
    // rounded by a separate kernel.
    if (!type_ || Cols(out) % ColumnMultiple(plan_.device) != 0 ||
        !CanRound(i)) {
      return false;
    }
    bool only = true;
    ForEachReader(i, [&](int32_t j) {
      const auto* const project = As<ProjectOp>(j);
      only &= project != nullptr && project->in.value == out.value &&
              !(project->add && project->out.value == out.value);
    });
    return only;
  }
  bool CanRound(int32_t i) const {
    if (const auto* const norm = As<NormOp>(i)) {
      return norm->norm.kind == NormKind::kRms &&
             !(norm->in.value == norm->out.value);
    }
    if (const auto* const norm = As<GatedNormOp>(i)) {
      return !(norm->out.value == norm->in.value) &&
             !(norm->out.value == norm->gate.value);
    }
    if (const auto* const op = As<SequenceOp>(i)) {
      return op->operation->RoundedOutput(form_.decode, plan_.device.pages) ==
             type_;
    }
    return As<GluOp>(i) != nullptr;
  }

  // --- What is fused ---

  // Whether a product of one row can compute the norm of `in` itself.
  bool FusesNorm(const Slice& in, const NormWeights& norm) const {
    const int64_t cols = Cols(in);
    return form_.decode && form_.rows == 1 && type_ && plan_.device.hopper &&
           norm.kind == NormKind::kRms && norm.groups == 1 &&
           cols > kNormWarpCols &&
           DecodeMatmulTakesFloats(PaddedInputs(cols), form_.rows,
                                   plan_.device.hopper);
  }

  std::optional<GatedUnit> GatedUnitAt(int32_t i) const {
    const GatedUnit unit = {As<NormOp>(i), As<ProjectOp>(i + 1),
                            As<GluOp>(i + 2), As<ProjectOp>(i + 3)};
    if (unit.norm == nullptr || unit.up == nullptr || unit.gate == nullptr ||
        unit.down == nullptr || !(unit.up->in == unit.norm->out) ||
        unit.up->add || !(unit.gate->in == unit.up->out) ||
        !(unit.down->in.value == unit.gate->out.value) || !unit.down->add ||
        !(unit.down->out == unit.norm->in) || !IsOnlyReader(i, i + 1) ||
        !IsOnlyReader(i + 1, i + 2) || !IsOnlyReader(i + 2, i + 3)) {
      return std::nullopt;
    }
    return unit;
  }

  // Rows of steps have the same bits either way; for rows of other prompts,
  // matrices and activation decide, as they must for every number of rows.
  bool FusesGatedUnit(const GatedUnit& unit) const {
    const Plan::Matrix& up = MatrixOf(*unit.up);
    if (!plan_.device.gpu || up.type == DType::kFloat32 ||
        !plan_.device.hopper) {
      return false;
    }
    if (form_.decode || form_.all_steps) return true;
    return IsGatedMatmul(up.outputs, up.padded_inputs, unit.gate->activation) &&
           MatrixOf(*unit.down).type == up.type;
  }

  // Columns in memory of a 16-bit matrix with that many.
  int64_t PaddedInputs(int64_t cols) const {
    const int64_t multiple = ColumnMultiple(plan_.device);
    return (cols + multiple - 1) / multiple * multiple;
  }

  static bool ChainsNorm(const NormWeights& norm) {
    return norm.kind == NormKind::kRms && norm.groups == 1;
  }

  // Makes the launch of `out`, at i, a chain of products if it can be one.
  void MakeChain(int32_t i, const ProjectOp& out, Launch* launch) const {
    if (!form_.decode || !form_.chains || !plan_.device.hopper || !type_ ||
        form_.rows > kProductChainMaxRows || !out.add ||
        !launch->reads_rounded) {
      return;
    }
    const auto unit = GatedUnitAt(i + 1);
    if (!unit || !ChainsNorm(unit->norm->norm) ||
        !(unit->norm->in == out.out) ||
        unit->gate->activation == Activation::kSoftmax ||
        Cols(out.out) != MatrixOf(out).outputs) {
      return;
    }
    const Plan::Matrix& up = MatrixOf(*unit->up);
    const Plan::Matrix& down = MatrixOf(*unit->down);
    const int64_t features = up.outputs / 2;
    const int64_t down_cols = Cols(unit->down->in);
    if (Cols(out.in) > MatrixOf(out).padded_inputs || down_cols > features ||
        down_cols > down.padded_inputs) {
      return;
    }
    ProductChainShape shape = {form_.rows,
                               MatrixOf(out).outputs,
                               MatrixOf(out).padded_inputs,
                               features,
                               up.padded_inputs,
                               down.padded_inputs,
                               0,
                               0};
    const auto takes = [&] {
      return PlanProductChain(shape, plan_.device.multiprocessors,
                              kProductChainSharedMemory)
                 .slots > 0;
    };
    if (!takes()) return;
    launch->form = Launch::Form::kChain;
    launch->count = 1 + kGatedUnitOps;
    if (As<SequenceOp>(i - 1) != nullptr &&
        OutputOf(program_.operations[i - 1]).value == out.in.value) {
      launch->mixed_by = i - 1;
    }
    const int32_t after = i + launch->count;
    const auto* const norm = As<NormOp>(after);
    const auto* const next = As<ProjectOp>(after + 1);
    if (norm == nullptr || next == nullptr || !ChainsNorm(norm->norm) ||
        !(norm->in == out.out) || norm->in.value == norm->out.value ||
        !(next->in == norm->out) || next->add ||
        !IsOnlyReader(after, after + 1)) {
      return;
    }
    shape.next_outputs = MatrixOf(*next).outputs;
    shape.next_inputs = MatrixOf(*next).padded_inputs;
    if (takes()) launch->count += 2;
  }

  MatrixId PrefetchAt(int32_t i) const {
    if (!form_.decode || form_.rows > kPrefetchRows) return {};
    int skip = form_.rows == 1 ? 1 : 0;
    for (int32_t j = i + 1; j < Count(); ++j) {
      if (const auto* const project = As<ProjectOp>(j);
          project != nullptr && skip-- == 0) {
        return project->matrix;
      }
    }
    return {};
  }

  const Program& program_;
  const recurve::Plan& plan_;
  const StepForm form_;
  std::optional<DType> type_;  // of rounded values
  std::vector<bool> rounded_;  // the contents of each value
  std::vector<Launch> launches_;
};

}  // namespace

std::vector<Launch> PlanLaunches(const Program& program, const Plan& plan,
                                 const StepForm& form) {
  return Planner(program, plan, form).Plan();
}

}  // namespace recurve
