#include "engine/models/linear/linear_cuda.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "engine/program/step_runs.h"
#include "kernels/linear_attn/causal/linear_chunks_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/linear_attn/linear_dims.h"
#include "kernels/linear_attn/linear_factors_cuda.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/linear_attn/step/linear_deferred_cuda.h"

namespace recurve {
namespace {

bool Aligned(const Activations& a) {
  return reinterpret_cast<uintptr_t>(a.data) % 16 == 0 && a.stride % 8 == 0;
}

// Whether the kernels compute the angles. Other models use tables.
bool ExactAngles(const PositionConfig& position) {
  return !position.float32_angles && position.log_decay == 0 &&
         !position.bfloat16_tables;
}

// Whether the causal kernel accepts encoded queries and keys.
bool MakesFactors(const LinearOperation::Params& of) {
  return ValidLinearDim(of.key_dim());
}

}  // namespace

std::unique_ptr<CudaOperations> LinearOperation::MakeCudaOperations(
    const CudaOperationLimits& limits) const {
  return std::make_unique<CudaLinear>(limits);
}

void CudaLinear::Add(const SequenceOperation& operation) {
  whole_prompts_ |=
      !static_cast<const LinearOperation&>(operation).params().causal;
}

absl::StatusOr<int64_t> CudaLinear::DeviceBytes() {
  if (limits_.chunk_multiple == 1 || !whole_prompts_) return 0;
  LinearNoncausalParams encoded = {};  // the largest case
  encoded.position = LrpeType::kCosine;
  return LinearNoncausalWorkspaceBytes(encoded);
}

absl::Status CudaLinear::Allocate() {
  RECURVE_ASSIGN_OR_RETURN(const int64_t bytes, DeviceBytes());
  if (bytes == 0) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(
      whole_workspace_,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, bytes,
                           "linear attention of whole prompts"));
  return absl::OkStatus();
}

// BeginMixed: at most one run per token, and one group per run.
int64_t CudaLinear::StepBytes() const {
  using Buffer = CudaStepBuffer;
  const int64_t tokens = std::max(limits_.max_tokens, limits_.max_sequences);
  return Buffer::Room<int32_t>(limits_.max_sequences) +
         tokens * (Buffer::Room<int32_t>(2) + Buffer::Room<int32_t>(1) +
                   2 * Buffer::Room<int64_t>(1));
}

absl::Status CudaLinear::BeginDecode(const CudaStep& step,
                                     const DecodeRows& rows,
                                     int64_t /*variant*/,
                                     CudaStepBuffer* buffer) {
  decode_ = true;
  rows_ = {step.sequences, step.query_start, step.slots, nullptr};
  steps_ = {rows_, step.positions, nullptr};
  std::copy_n(rows.prompt_ends, rows_.count,
              buffer->Add(rows_.count, &steps_.prompt_ends));
  return absl::OkStatus();
}

absl::Status CudaLinear::BeginMixed(const CudaStep& step,
                                    const StepBatch& batch,
                                    CudaStepBuffer* buffer) {
  decode_ = false;
  rows_ = {step.sequences, step.query_start, step.slots, nullptr};
  const std::vector<int32_t> whole = WholePromptRows(batch);
  std::copy(whole.begin(), whole.end(), buffer->Add(rows_.count, &rows_.whole));
  groups_.clear();
  if (limits_.chunk_multiple == 1) return absl::OkStatus();
  for (const std::vector<StepRun>& runs_of : RunGroups(batch.runs)) {
    Group group = {};
    group.prompt = !runs_of.front().step();
    Rows& group_rows = group.launch.rows;
    group_rows.count = static_cast<int64_t>(runs_of.size());
    int32_t* const query_start =
        buffer->Add(group_rows.count + 1, &group_rows.query_start);
    int32_t* const slots = buffer->Add(group_rows.count, &group_rows.slots);
    int64_t* const positions =
        buffer->Add(group_rows.count, &group.launch.positions);
    int64_t* const prompt_ends =
        buffer->Add(group_rows.count, &group.launch.prompt_ends);
    for (int64_t i = 0; i < group_rows.count; ++i) {
      const StepRun& run = runs_of[i];
      query_start[i] = static_cast<int32_t>(run.begin);
      query_start[i + 1] = static_cast<int32_t>(run.end);
      slots[i] = batch.slots[run.sequence];
      positions[i] = batch.positions[run.begin];
      prompt_ends[i] = run.prompt_end;
      group.pending |= LinearPendingAt(positions[i], prompt_ends[i]).count > 0;
      const bool begins = BeginsPrompt(batch, run);
      if (i == 0 || begins != group.stretches.back().whole) {
        group.stretches.push_back({begins, i, 0, run.begin, run.begin});
      }
      ++group.stretches.back().count;
      group.stretches.back().end = run.end;
    }
    groups_.push_back(std::move(group));
  }
  return absl::OkStatus();
}

bool CudaLinear::PrefillsByChunks(const Layer& layer) const {
  const LinearOperation::Params& config = *layer.of;
  const LrpeType position =
      MakesFactors(config) ? LrpeType::kNone : config.position_type;
  const int64_t dim = MakesFactors(config) ? config.key_dim() : config.head_dim;
  // Whether the factors fit the variant of the kernel that LaunchLinearPrefill
  // chooses: they meet the conditions of LinearChunksDoes, except for their
  // size.
  const bool room =
      MakesFactors(config) && dim <= kLinearChunksMaxDim
          ? PlanLinearChunks(dim, config.value_dim, config.num_heads, 1,
                             limits_.device.multiprocessors,
                             limits_.device.shared_memory)
                    .stages >= kLinearChunksMinStages
          : PlanLinearPrefill(position, dim, config.value_dim, config.num_heads,
                              1, limits_.device.multiprocessors,
                              limits_.device.shared_memory)
                    .stages >= kLinearPrefillMinStages;
  return limits_.chunk_multiple > 1 && ValidLinearDim(config.head_dim) &&
         ValidLinearDim(config.value_dim) && config.num_heads <= 65535 / 4 &&
         layer.v.stride == layer.q.stride && Aligned(layer.q) &&
         Aligned(layer.k) && Aligned(layer.v) && Aligned(layer.out) &&
         Aligned(layer.workspace) &&
         (MakesFactors(config) || ExactAngles(*layer.position)) && room;
}

LinearAttentionParams CudaLinear::ScanParams(const Layer& layer,
                                             const Rows& rows) {
  const LinearOperation::Params& config = *layer.of;
  LinearAttentionParams params = {};
  params.num_heads = config.num_heads;
  params.head_dim = config.head_dim;
  params.value_dim = config.value_dim;
  params.q = layer.q.data;
  params.k = layer.k.data;
  params.v = layer.v.data;
  params.stride = layer.q.stride;
  params.v_stride = layer.v.stride;
  params.out = layer.out.data;
  params.out_stride = layer.out.stride;
  params.query_start = rows.query_start;
  params.sequences = rows.count;
  params.q_activation = config.q_activation;
  params.k_activation = config.k_activation;
  params.v_activation = config.v_activation;
  params.position = config.position_type;
  params.cos = layer.cos;
  params.sin = layer.sin;
  params.decay = layer.decay;
  params.states = layer.states;
  params.slot_stride = layer.slot_stride;
  params.slots = rows.slots;
  params.whole = config.causal ? nullptr : rows.whole;
  return params;
}

absl::Status CudaLinear::Scan(const Layer& layer, const Rows& rows, bool early,
                              cudaStream_t stream) {
  return CudaStatus(LaunchLinearScan(ScanParams(layer, rows), early, stream),
                    "linear attention");
}

absl::Status CudaLinear::Defer(const Layer& layer, const Segment& launch,
                               bool early, cudaStream_t stream) {
  return CudaStatus(
      LaunchLinearDeferred({ScanParams(layer, launch.rows), launch.positions,
                            launch.prompt_ends, layer.rings},
                           early, stream),
      "linear attention of steps");
}

absl::Status CudaLinear::Fold(const Layer& layer, const Segment& launch,
                              cudaStream_t stream) {
  return CudaStatus(
      LaunchLinearFold({ScanParams(layer, launch.rows), launch.positions,
                        launch.prompt_ends, layer.rings},
                       stream),
      "folding states");
}

absl::Status CudaLinear::MakeFactors(const Layer& layer, bool encode,
                                     int64_t begin, int64_t end,
                                     Factors* factors, cudaStream_t stream) {
  const LinearOperation::Params& config = *layer.of;
  const LrpeType position = encode ? config.position_type : LrpeType::kNone;
  const int64_t angles = LrpeAngles(position, config.head_dim);
  const int64_t keys =
      config.num_heads * LrpeOutputDim(position, config.head_dim);
  auto* const rows = reinterpret_cast<uint16_t*>(layer.workspace.data);
  *factors = {rows, rows + keys, rows + 2 * keys, 2 * layer.workspace.stride};
  LinearFactorsParams params = {};
  params.tokens = end - begin;
  params.num_heads = config.num_heads;
  params.head_dim = config.head_dim;
  params.value_dim = config.value_dim;
  params.q = layer.q.data + begin * layer.q.stride;
  params.k = layer.k.data + begin * layer.k.stride;
  params.v = layer.v.data + begin * layer.v.stride;
  params.stride = layer.q.stride;
  params.q_activation = config.q_activation;
  params.k_activation = config.k_activation;
  params.v_activation = config.v_activation;
  params.position = position;
  params.cos = layer.cos + begin * angles;
  params.sin = layer.sin + begin * angles;
  uint16_t* const first = rows + begin * factors->stride;
  params.q_factors = first;
  params.k_factors = first + keys;
  params.v_factors = first + 2 * keys;
  params.factors_stride = factors->stride;
  return CudaStatus(LaunchLinearFactors(params, stream),
                    "factors of linear attention");
}

absl::Status CudaLinear::Prefill(const Layer& layer, const Segment& launch,
                                 int64_t begin, int64_t end,
                                 cudaStream_t stream) {
  const LinearOperation::Params& config = *layer.of;
  LinearPrefillParams params = {};
  params.num_heads = config.num_heads;
  params.value_dim = config.value_dim;
  if (MakesFactors(config)) {
    Factors factors;
    RECURVE_RETURN_IF_ERROR(
        MakeFactors(layer, /*encode=*/true, begin, end, &factors, stream));
    params.head_dim = config.key_dim();
    params.io_type = ElementType::kBFloat16;
    params.q = factors.q;
    params.k = factors.k;
    params.v = factors.v;
    params.stride = factors.stride;
    params.q_activation = params.k_activation = params.v_activation =
        Activation::kNone;
    params.position = LrpeType::kNone;
  } else {
    params.head_dim = config.head_dim;
    params.io_type = ElementType::kFloat32;
    params.q = layer.q.data;
    params.k = layer.k.data;
    params.v = layer.v.data;
    params.stride = layer.q.stride;
    params.q_activation = config.q_activation;
    params.k_activation = config.k_activation;
    params.v_activation = config.v_activation;
    params.position = config.position_type;
    params.phase_steps = layer.phase_steps;
  }
  params.out_type = ElementType::kFloat32;
  params.out = layer.out.data;
  params.out_stride = layer.out.stride;
  params.query_start = launch.rows.query_start;
  params.max_rows = launch.rows.count;
  params.slots = launch.rows.slots;
  params.positions = launch.positions;
  params.scale = 1;
  params.decay = layer.decay;
  params.states = layer.states;
  params.slot_stride = layer.slot_stride;
  return CudaStatus(LaunchLinearPrefill(params, stream),
                    "linear attention of prompts");
}

bool CudaLinear::FusesWhole(const Layer& layer) {
  const LinearOperation::Params& config = *layer.of;
  const bool encoded = config.key_dim() <= kLinearNoncausalMaxDim;
  return config.head_dim <= kLinearNoncausalMaxDim &&
         config.value_dim <= kLinearNoncausalMaxDim &&
         (encoded || ExactAngles(*layer.position)) &&
         layer.slot_stride % 4 == 0;
}

absl::Status CudaLinear::PrefillWhole(const Layer& layer, const Segment& launch,
                                      const Stretch& stretch,
                                      cudaStream_t stream) const {
  const LinearOperation::Params& config = *layer.of;
  const bool encoded = config.key_dim() <= kLinearNoncausalMaxDim;
  Factors factors;
  RECURVE_RETURN_IF_ERROR(MakeFactors(layer, encoded, stretch.begin,
                                      stretch.end, &factors, stream));
  LinearNoncausalParams params = {};
  params.num_heads = config.num_heads;
  params.head_dim = encoded ? config.key_dim() : config.head_dim;
  params.value_dim = config.value_dim;
  params.q = factors.q;
  params.k = factors.k;
  params.v = factors.v;
  params.stride = factors.stride;
  params.out_type = ElementType::kFloat32;
  params.out = layer.out.data;
  params.out_stride = layer.out.stride;
  params.query_start = launch.rows.query_start + stretch.first;
  params.max_rows = stretch.count;
  params.slots = launch.rows.slots + stretch.first;
  params.positions = launch.positions + stretch.first;
  params.q_activation = params.k_activation = Activation::kNone;
  params.position = encoded ? LrpeType::kNone : config.position_type;
  params.phase_steps = layer.phase_steps;
  params.scale = 1;
  params.states = layer.states;
  params.slot_stride = layer.slot_stride;
  params.workspace = whole_workspace_.data();
  return CudaStatus(LaunchLinearNoncausal(params, stream),
                    "linear attention of whole prompts");
}

absl::Status CudaLinear::PrefillStretches(const Layer& layer,
                                          const Group& group,
                                          cudaStream_t stream) const {
  for (const Stretch& stretch : group.stretches) {
    if (stretch.whole) {
      RECURVE_RETURN_IF_ERROR(
          PrefillWhole(layer, group.launch, stretch, stream));
      continue;
    }
    const Rows& rows = group.launch.rows;
    RECURVE_RETURN_IF_ERROR(
        Prefill(layer,
                {{stretch.count, rows.query_start + stretch.first,
                  rows.slots + stretch.first, nullptr},
                 group.launch.positions + stretch.first,
                 group.launch.prompt_ends + stretch.first},
                stretch.begin, stretch.end, stream));
  }
  return absl::OkStatus();
}

absl::Status CudaLinear::Attend(const Layer& layer, cudaStream_t stream) {
  const bool causal = layer.of->causal;
  const bool defers = layer.rings != nullptr;
  if (decode_ && defers) return Defer(layer, steps_, /*early=*/true, stream);
  const bool chunks = PrefillsByChunks(layer);
  if (decode_ || (!defers && (!chunks || (!causal && !FusesWhole(layer))))) {
    // In other steps a sequence's runs are adjacent.
    return Scan(layer, rows_, /*early=*/decode_, stream);
  }
  for (const Group& group : groups_) {
    if (!group.prompt) {
      RECURVE_RETURN_IF_ERROR(
          defers ? Defer(layer, group.launch, /*early=*/false, stream)
                 : Scan(layer, group.launch.rows, /*early=*/false, stream));
      continue;
    }
    if (defers && group.pending) {
      RECURVE_RETURN_IF_ERROR(Fold(layer, group.launch, stream));
    }
    if (!chunks) {
      RECURVE_RETURN_IF_ERROR(
          Scan(layer, group.launch.rows, /*early=*/false, stream));
    } else if (causal) {
      RECURVE_RETURN_IF_ERROR(Prefill(layer, group.launch,
                                      group.stretches.front().begin,
                                      group.stretches.back().end, stream));
    } else {
      RECURVE_RETURN_IF_ERROR(PrefillStretches(layer, group, stream));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaLinear::Launch(const SequenceOperation& operation,
                                const CudaView& view,
                                const Output& /*output*/) {
  const LinearOperation::Params& p =
      static_cast<const LinearOperation&>(operation).params();
  const CudaPositions::Encoding& position = view.position(p.position);
  const CudaView::States states = view.states(p.state);
  Layer layer = {};
  layer.of = &p;
  layer.position = &position.config;
  layer.phase_steps = position.phase_steps.as<const uint64_t>();
  layer.cos = position.cos.as<const float>();
  layer.sin = position.sin.as<const float>();
  layer.decay = view.vector(p.decay);
  layer.states = states.data;
  layer.slot_stride = states.stride;
  if (p.ring.value >= 0 && limits_.chunk_multiple > 1) {
    layer.rings = view.states(p.ring).data;
  }
  layer.q = view.View(p.q);
  layer.k = view.View(p.k);
  layer.v = view.View(p.v);
  layer.out = view.View(p.out);
  if (p.workspace.value.value >= 0) layer.workspace = view.View(p.workspace);
  return Attend(layer, view.stream());
}

}  // namespace recurve
