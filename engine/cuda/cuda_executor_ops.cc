// Launches of CudaExecutor: each operation, and each fused form, on the stream.

#include <algorithm>
#include <variant>

#include "base/status_macros.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/program/print_plan.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/tpa/append/expand_factors_cuda.h"

namespace recurve {

// ----------------------------------------------------------------------------
// What the program names, on the device

Activations CudaExecutor::View(const Slice& slice) const {
  const Plan::Place place = plan_.PlaceOf(slice);
  return {buffers_[place.buffer].as<float>() + place.first, place.cols,
          plan_.buffers[place.buffer]};
}

const float* CudaExecutor::vector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].as<const float>();
}

CudaView::Pages CudaExecutor::pages(PagesId id) const {
  return {memory_.pages() + plan_.pages[id.value] * static_cast<int64_t>(SizeOf(
                                                        plan_.device.pages)),
          plan_.page_elements};
}

CudaView::States CudaExecutor::states(StateId id) const {
  return {
      reinterpret_cast<float*>(memory_.slots()) + plan_.states[id.value].first,
      plan_.slot_elements};
}

CudaProducts::Norm CudaExecutor::WeightsOf(const NormWeights& norm) const {
  return {norm.kind, norm.groups, static_cast<float>(norm.eps),
          vector(norm.weight), vector(norm.bias)};
}

CudaProducts::GatedUnit CudaExecutor::UnitAt(int32_t i) const {
  const auto& norm = OpAt<NormOp>(i);
  const auto& down = OpAt<ProjectOp>(i + 3);
  return {View(norm.in),
          WeightsOf(norm.norm),
          OpAt<ProjectOp>(i + 1).matrix,
          OpAt<GluOp>(i + 2).activation,
          down.matrix,
          View(norm.out),
          View(down.in)};
}

CudaOperations& CudaExecutor::KindOf(const SequenceOperation& operation) const {
  return *std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) {
            return kind.name == operation.name();
          })->operations;
}

// ----------------------------------------------------------------------------
// Launches

void CudaExecutor::Run(const Launch& launch) {
  if (!active()) return;
  if (probe_ != nullptr) probe_->Before(NameOf(program_, plan_, launch));
  const int32_t i = launch.first;
  switch (launch.form) {
    case Launch::Form::kOne:
      RunOne(launch);
      break;
    case Launch::Form::kNormed: {
      const auto& norm = OpAt<NormOp>(i);
      const auto& project = OpAt<ProjectOp>(i + 1);
      Check(products_->ProjectNormed({View(norm.in), WeightsOf(norm.norm)},
                                     project.matrix, View(project.out),
                                     project.add));
      break;
    }
    case Launch::Form::kGatedUnit:
      Check(products_->RunUnit(UnitAt(i), launch.fuses_norm));
      break;
    case Launch::Form::kChain:
      Check(RunChain(launch));
      break;
  }
  if (probe_ != nullptr) probe_->After();
}

void CudaExecutor::RunOne(const Launch& launch) {
  Check(std::visit([&](const auto& op) { return Run(launch, op); },
                   program_.operations[launch.first]));
}

absl::Status CudaExecutor::RunChain(const Launch& launch) {
  const int32_t i = launch.first;
  const auto& out = OpAt<ProjectOp>(i);
  CudaProducts::Chain chain = {};
  chain.out = out.matrix;
  chain.x = View(out.in);
  chain.unit = UnitAt(i + 1);
  if (launch.mixed_by >= 0) {
    const SequenceOperation& mixer =
        *OpAt<SequenceOp>(launch.mixed_by).operation;
    chain.working = KindOf(mixer).Working(mixer);
  }
  if (launch.count > 5) {
    const auto& norm = OpAt<NormOp>(i + 5);
    const auto& next = OpAt<ProjectOp>(i + 6);
    chain.next = next.matrix;
    chain.next_norm = WeightsOf(norm.norm);
    chain.y = View(next.out);
  }
  return products_->RunChain(chain);
}

absl::Status CudaExecutor::Run(const Launch& /*launch*/, const EmbedOp& op) {
  const Table& t = tables_[op.table.value];
  const Activations out = View(op.out);
  return CudaStatus(
      LaunchEmbed({t.type, t.memory.data(), t.vocab, step_.tokens,
                   step_.sources, sampler_.tokens(), CudaSampler::kTokenStride,
                   out.data, out.stride, step_.rows, t.cols, op.scale},
                  stream_),
      "embedding");
}

absl::Status CudaExecutor::Run(const Launch& /*launch*/, const FillOp& op) {
  const Activations out = View(op.out);
  return CudaStatus(LaunchFillRows({vector(op.values), out.data, out.stride,
                                    step_.rows, out.cols},
                                   stream_),
                    "fill");
}

absl::Status CudaExecutor::Run(const Launch& /*launch*/, const AddOp& op) {
  const Activations in = View(op.in);
  const Activations out = View(op.out);
  return CudaStatus(LaunchAddRows({in.data, in.stride, out.data, out.stride,
                                   step_.rows, out.cols},
                                  stream_),
                    "add");
}

absl::Status CudaExecutor::Run(const Launch& launch, const NormOp& op) {
  return products_->Normalise({View(op.in), WeightsOf(op.norm)}, View(op.out),
                              launch.writes_rounded);
}

absl::Status CudaExecutor::Run(const Launch& launch, const ProjectOp& op) {
  return products_->Project(View(op.in), launch.reads_rounded, op.matrix,
                            View(op.out), op.add);
}

absl::Status CudaExecutor::Run(const Launch& launch, const GluOp& op) {
  return products_->Glu(View(op.in), op.activation, View(op.out),
                        launch.writes_rounded);
}

absl::Status CudaExecutor::Run(const Launch& launch, const GatedNormOp& op) {
  const Activations in = View(op.in);
  const Activations gate = View(op.gate);
  const Activations out = View(op.out);
  const bool rounded = launch.writes_rounded;
  CudaGatedNormParams params = {};
  params.norm = {ElementType::kFloat32,
                 in.data,
                 in.stride,
                 vector(op.norm.weight),
                 out.data,
                 rounded ? 2 * out.stride : out.stride,
                 step_.rows,
                 nullptr,
                 in.cols,
                 op.norm.groups,
                 static_cast<float>(op.norm.eps)};
  params.gate = gate.data;
  params.gate_stride = gate.stride;
  params.activation = op.activation;
  params.gate_after_norm = op.gate_after_norm;
  return CudaStatus(
      rounded ? LaunchRoundedGatedNorm(params, *products_->type(), stream_)
              : LaunchGatedNorm(params, stream_),
      "gated norm");
}

absl::Status CudaExecutor::Run(const Launch& /*launch*/, const ExpandOp& op) {
  const Activations a = View(op.a);
  const Activations b = View(op.b);
  const Activations out = View(op.out);
  return CudaStatus(
      LaunchExpandFactors({a.data, b.data, a.stride, out.data, out.stride,
                           step_.rows, op.rank, op.num_heads, b.cols / op.rank},
                          stream_),
      "expanding factors");
}

absl::Status CudaExecutor::Run(const Launch& launch, const SequenceOp& op) {
  CudaOperations::Output output;
  if (launch.writes_rounded) output.type = *products_->type();
  if (launch.prefetch.value >= 0) {
    output.prefetch = products_->data(launch.prefetch);
  }
  return KindOf(*op.operation).Launch(*op.operation, *this, output);
}

absl::Status CudaExecutor::ComputeLogits(const Launch& launch, const HeadOp& op,
                                         const int32_t* index, int64_t rows) {
  return products_->Logits({View(op.in), WeightsOf(op.norm)}, launch.fuses_norm,
                           index, rows, op.matrix, logits_.inputs(),
                           logits_.data(),
                           CudaLogits::Stride(program_.vocab_size));
}

// A decode step computes logits for all rows, including padding; other steps
// only the wanted ones, logits_.capacity() at a time.
absl::Status CudaExecutor::Run(const Launch& launch, const HeadOp& op) {
  if (step_.decode) {
    RECURVE_RETURN_IF_ERROR(ComputeLogits(launch, op, nullptr, step_.rows));
    Draw(0, step_.rows);
    return absl::OkStatus();
  }
  const auto rows = static_cast<int64_t>(batch_->logit_rows.size());
  const bool to_host = ReserveHostLogits();
  const auto& samples = batch_->samples;  // in the order of their logits
  size_t drawn = 0;
  size_t kept = 0;
  for (int64_t first = 0; first < rows; first += logits_.capacity()) {
    RECURVE_RETURN_IF_ERROR(status_);
    const int64_t count = std::min(logits_.capacity(), rows - first);
    RECURVE_RETURN_IF_ERROR(
        ComputeLogits(launch, op, step_.logit_rows + first, count));
    size_t end = drawn;
    while (end < samples.size() && samples[end].logit_index < first + count)
      ++end;
    Draw(static_cast<int64_t>(drawn), static_cast<int64_t>(end - drawn));
    drawn = end;
    for (; kept < batch_->kept.size() && batch_->kept[kept] < first + count;
         ++kept) {
      RECURVE_RETURN_IF_ERROR(logits_.Keep(
          batch_->kept[kept] - first, num_begun_, static_cast<int64_t>(kept),
          program_.vocab_size, stream_));
    }
    if (to_host) {
      RECURVE_RETURN_IF_ERROR(
          logits_.CopyToHost(0, first, count, program_.vocab_size, stream_));
    }
  }
  return absl::OkStatus();
}

}  // namespace recurve
