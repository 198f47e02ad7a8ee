#include "engine/models/gated_delta/gated_delta_cuda.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"
#include "engine/models/gated_delta/gated_delta_params.h"
#include "engine/program/step_runs.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/short_conv/short_conv_cuda.h"

namespace recurve {
namespace {

// Tokens of prompts for which the workspace has all chunks; a step with more
// takes several rounds.
constexpr int64_t kWorkspaceTokens = 4096;

// Two bfloat16 terms for each factor: with one, logits of small models with
// random weights are some percent off.
constexpr DeltaPrecision kPrecision = DeltaPrecision::kFloat32;

}  // namespace

std::unique_ptr<CudaOperations> GatedDeltaOperation::MakeCudaOperations(
    const CudaOperationLimits& limits) const {
  return std::make_unique<CudaGatedDelta>(limits);
}

CudaGatedDelta::CudaGatedDelta(const CudaOperationLimits& limits)
    : limits_(limits), chunks_(limits.matrices == DType::kBFloat16) {}

void CudaGatedDelta::Add(const SequenceOperation& operation) {
  if (!chunks_) return;
  const GatedDeltaOperation::Params& p =
      static_cast<const GatedDeltaOperation&>(operation).params();
  workspace_bytes_ = std::max(
      workspace_bytes_,
      GatedDeltaPrefillWorkspace(std::min(limits_.max_tokens, kWorkspaceTokens),
                                 limits_.max_sequences, p.value_heads,
                                 p.value_dim, kPrecision));
}

absl::StatusOr<int64_t> CudaGatedDelta::DeviceBytes() {
  if (!limits_.device.hopper) {
    return absl::InvalidArgumentError(
        "the GPU does not support gated delta rules: it needs compute "
        "capability 9.0 (--device cpu runs them)");
  }
  return workspace_bytes_;
}

absl::Status CudaGatedDelta::Allocate() {
  RECURVE_ASSIGN_OR_RETURN(const int64_t bytes, DeviceBytes());
  if (bytes == 0) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(
      workspace_,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, bytes,
                           "gated delta rules over prompts; lower "
                           "--max-num-seqs or --max-num-batched-tokens"));
  return absl::OkStatus();
}

// BeginMixed: at most one run per token, and one group per run.
int64_t CudaGatedDelta::StepBytes() const {
  using Buffer = CudaStepBuffer;
  const int64_t tokens = std::max(limits_.max_tokens, limits_.max_sequences);
  return tokens * (Buffer::Room<int32_t>(2) + Buffer::Room<int32_t>(1) +
                   Buffer::Room<int64_t>(1));
}

absl::Status CudaGatedDelta::BeginDecode(const CudaStep& step,
                                         const DecodeRows& /*rows*/,
                                         int64_t /*variant*/,
                                         CudaStepBuffer* /*buffer*/) {
  decode_ = true;
  segments_ = {{false, step.sequences, step.query_start, step.slots, nullptr, 0,
                step.rows}};
  return absl::OkStatus();
}

absl::Status CudaGatedDelta::BeginMixed(const CudaStep& /*step*/,
                                        const StepBatch& batch,
                                        CudaStepBuffer* buffer) {
  decode_ = false;
  segments_.clear();
  for (const std::vector<StepRun>& runs : RunGroups(batch.runs)) {
    Segment segment = {};
    segment.chunks = chunks_ && !runs.front().step();
    segment.count = static_cast<int64_t>(runs.size());
    segment.begin = runs.front().begin;
    segment.end = runs.back().end;
    int32_t* const query_start =
        buffer->Add(segment.count + 1, &segment.query_start);
    int32_t* const slots = buffer->Add(segment.count, &segment.slots);
    int64_t* const positions = buffer->Add(segment.count, &segment.positions);
    for (int64_t i = 0; i < segment.count; ++i) {
      query_start[i] = static_cast<int32_t>(runs[i].begin - segment.begin);
      query_start[i + 1] = static_cast<int32_t>(runs[i].end - segment.begin);
      slots[i] = batch.slots[runs[i].sequence];
      positions[i] = batch.positions[runs[i].begin];
    }
    segments_.push_back(segment);
  }
  return absl::OkStatus();
}

absl::Status CudaGatedDelta::Step(const GatedDeltaOperation::Params& p,
                                  const CudaView& view, const Segment& rows,
                                  WeightType out_type, bool early) const {
  const Activations z = view.View(p.z).RowsFrom(rows.begin);
  const CudaView::States conv_states = view.states(p.conv_state);
  GatedDeltaStepParams params = {};
  params.of = MakeGatedDeltaParams(
      p, view, view.View(p.qkv).RowsFrom(rows.begin), rows.begin);
  params.of.query_start = rows.query_start;
  params.of.sequences = rows.count;
  params.of.slots = rows.slots;
  // The row stride in bytes is the same for rounded and float rows.
  if (out_type == WeightType::kBFloat16) {
    params.of.out_type = ElementType::kBFloat16;
    params.of.out_stride *= 2;
  }
  params.conv_weight = view.vector(p.conv_weight);
  params.conv_width = p.conv_width;
  params.conv_states = conv_states.data;
  params.conv_slot_stride = conv_states.stride;
  params.norm_weight = view.vector(p.norm_weight);
  params.norm_eps = p.norm_eps;
  params.z = z.data;
  params.z_stride = z.stride;
  params.activation = p.gate;
  return CudaStatus(LaunchGatedDeltaStep(params, early, view.stream()),
                    "a step of the gated delta rule");
}

absl::Status CudaGatedDelta::Prefill(const GatedDeltaOperation::Params& p,
                                     const CudaView& view,
                                     const Segment& rows) const {
  const cudaStream_t stream = view.stream();
  const Activations x = view.View(p.qkv).RowsFrom(rows.begin);
  const Activations y = view.View(p.convolved).RowsFrom(rows.begin);
  const CudaView::States conv_states = view.states(p.conv_state);
  CudaShortConvParams conv = {};
  conv.of.channels = p.channels();
  conv.of.width = p.conv_width;
  conv.of.type = ElementType::kFloat32;
  conv.of.x = x.data;
  conv.of.x_stride = x.stride;
  conv.of.y = y.data;
  conv.of.y_stride = y.stride;
  conv.of.query_start = rows.query_start;
  conv.of.sequences = rows.count;
  conv.of.weight = view.vector(p.conv_weight);
  conv.of.states = conv_states.data;
  conv.of.slot_stride = conv_states.stride;
  conv.of.slots = rows.slots;
  conv.rows = rows.end - rows.begin;
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(LaunchShortConv(conv, stream), "a short convolution"));

  GatedDeltaPrefillParams params = {};
  params.of = MakeGatedDeltaParams(p, view, y, rows.begin);
  params.of.query_start = rows.query_start;
  params.of.sequences = rows.count;
  params.of.slots = rows.slots;
  params.tokens = rows.end - rows.begin;
  params.positions = rows.positions;
  params.precision = kPrecision;
  params.workspace = workspace_.data();
  params.workspace_bytes = workspace_bytes_;
  RECURVE_RETURN_IF_ERROR(CudaStatus(LaunchGatedDeltaPrefill(params, stream),
                                     "the gated delta rule over prompts"));

  const Activations z = view.View(p.z).RowsFrom(rows.begin);
  const Activations out = view.View(p.out).RowsFrom(rows.begin);
  CudaGatedNormParams norm = {};
  norm.norm.type = ElementType::kFloat32;
  norm.norm.x = out.data;
  norm.norm.x_stride = out.stride;
  norm.norm.weight = view.vector(p.norm_weight);
  norm.norm.y = out.data;
  norm.norm.y_stride = out.stride;
  norm.norm.rows = rows.end - rows.begin;
  norm.norm.cols = out.cols;
  norm.norm.groups = p.value_heads;
  norm.norm.eps = p.norm_eps;
  norm.gate = z.data;
  norm.gate_stride = z.stride;
  norm.activation = p.gate;
  norm.gate_after_norm = true;
  return CudaStatus(LaunchGatedNorm(norm, stream), "a gated norm");
}

absl::Status CudaGatedDelta::Launch(const SequenceOperation& operation,
                                    const CudaView& view,
                                    const Output& output) {
  const GatedDeltaOperation::Params& p =
      static_cast<const GatedDeltaOperation&>(operation).params();
  for (const Segment& segment : segments_) {
    RECURVE_RETURN_IF_ERROR(segment.chunks ? Prefill(p, view, segment)
                                           : Step(p, view, segment, output.type,
                                                  /*early=*/decode_));
  }
  return absl::OkStatus();
}

}  // namespace recurve
