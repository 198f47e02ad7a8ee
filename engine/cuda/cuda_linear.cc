#include "engine/cuda/cuda_linear.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/cuda/cuda_activations.h"
#include "kernels/linear_attn/causal/linear_chunks_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/linear_attn/linear_factors_cuda.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/linear_attn/step/linear_step_check.h"

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
bool MakesFactors(const CudaLinear::Layer& layer) {
  return ValidLinearDim(layer.key_dim());
}

}  // namespace

int64_t CudaLinear::ChunkMultiple(bool hopper, bool states, bool bfloat16) {
  return hopper && states && bfloat16 ? kLinearPrefillChunk : 1;
}

absl::Status CudaLinear::UseChunks(bool whole) {
  chunk_multiple_ = kLinearPrefillChunk;
  if (!whole) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(
      whole_workspace_,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, WholeBytes(),
                           "linear attention of whole prompts"));
  return absl::OkStatus();
}

int64_t CudaLinear::WholeBytes() {
  LinearNoncausalParams encoded = {};  // the largest case
  encoded.position = LrpeType::kCosine;
  return LinearNoncausalWorkspaceBytes(encoded);
}

// BeginMixed: at most one run per token, and one group per run.
int64_t CudaLinear::StepBytes(int64_t tokens, int64_t sequences) {
  using Buffer = CudaStepBuffer;
  return Buffer::Room<int32_t>(sequences) +
         tokens * (Buffer::Room<int32_t>(2) + Buffer::Room<int32_t>(1) +
                   Buffer::Room<int64_t>(1));
}

void CudaLinear::BeginDecode(const Rows& rows) {
  decode_ = true;
  rows_ = rows;
}

void CudaLinear::BeginMixed(const Rows& rows, const StepBatch& batch,
                            const std::vector<StepRun>& runs,
                            CudaStepBuffer* step) {
  decode_ = false;
  rows_ = rows;
  const std::vector<int32_t> whole = WholePromptRows(batch, runs);
  std::copy(whole.begin(), whole.end(), step->Add(rows.count, &rows_.whole));
  groups_.clear();
  if (chunk_multiple_ == 1) return;
  for (const std::vector<StepRun>& runs_of : RunGroups(runs)) {
    Group group = {};
    group.prompt = !runs_of.front().step;
    Rows& group_rows = group.launch.rows;
    group_rows.count = static_cast<int64_t>(runs_of.size());
    int32_t* const query_start =
        step->Add(group_rows.count + 1, &group_rows.query_start);
    int32_t* const slots = step->Add(group_rows.count, &group_rows.slots);
    int64_t* const positions =
        step->Add(group_rows.count, &group.launch.positions);
    for (int64_t i = 0; i < group_rows.count; ++i) {
      const StepRun& run = runs_of[i];
      query_start[i] = static_cast<int32_t>(run.begin);
      query_start[i + 1] = static_cast<int32_t>(run.end);
      slots[i] = batch.slots[run.sequence];
      positions[i] = batch.positions[run.begin];
      const bool begins = BeginsPrompt(batch, run);
      if (i == 0 || begins != group.stretches.back().whole) {
        group.stretches.push_back({begins, i, 0, run.begin, run.begin});
      }
      ++group.stretches.back().count;
      group.stretches.back().end = run.end;
    }
    groups_.push_back(std::move(group));
  }
}

bool CudaLinear::PrefillsByChunks(const Layer& layer) const {
  const LinearConfig& config = *layer.config;
  const LrpeType position =
      MakesFactors(layer) ? LrpeType::kNone : config.position.type;
  const int64_t dim = MakesFactors(layer) ? layer.key_dim() : config.head_dim;
  // Whether the factors fit the variant of the kernel that LaunchLinearPrefill
  // chooses: they meet the conditions of LinearChunksDoes, except for their
  // size.
  const bool room =
      MakesFactors(layer) && dim <= kLinearChunksMaxDim
          ? PlanLinearChunks(dim, config.value_dim, config.num_heads, 1,
                             device_.multiprocessors, device_.shared_memory)
                    .stages >= kLinearChunksMinStages
          : PlanLinearPrefill(position, dim, config.value_dim, config.num_heads,
                              1, device_.multiprocessors, device_.shared_memory)
                    .stages >= kLinearPrefillMinStages;
  return chunk_multiple_ > 1 && ValidLinearDim(config.head_dim) &&
         ValidLinearDim(config.value_dim) && config.num_heads <= 65535 / 4 &&
         layer.v.stride == layer.q.stride && Aligned(layer.q) &&
         Aligned(layer.k) && Aligned(layer.v) && Aligned(layer.out) &&
         Aligned(layer.scratch) &&
         (MakesFactors(layer) || ExactAngles(config.position)) && room;
}

absl::Status CudaLinear::Scan(const Layer& layer, const Rows& rows, bool early,
                              cudaStream_t stream) {
  const LinearConfig& config = *layer.config;
  LinearAttentionParams params = {};
  params.num_heads = config.num_heads;
  params.head_dim = config.head_dim;
  params.value_dim = config.value_dim;
  params.q = Floats(layer.q);
  params.k = Floats(layer.k);
  params.v = Floats(layer.v);
  params.stride = layer.q.stride;
  params.v_stride = layer.v.stride;
  params.out = Floats(layer.out);
  params.out_stride = layer.out.stride;
  params.query_start = rows.query_start;
  params.sequences = rows.count;
  params.q_activation = config.q_activation;
  params.k_activation = config.k_activation;
  params.v_activation = config.v_activation;
  params.position = config.position.type;
  params.cos = layer.cos;
  params.sin = layer.sin;
  params.decay = layer.decay;
  params.states = layer.states;
  params.slot_stride = layer.slot_stride;
  params.slots = rows.slots;
  params.whole = config.causal ? nullptr : rows.whole;
  return CudaStatus(LaunchLinearScan(params, early, stream),
                    "linear attention");
}

absl::Status CudaLinear::MakeFactors(const Layer& layer, bool encode,
                                     int64_t begin, int64_t end,
                                     Factors* factors, cudaStream_t stream) {
  const LinearConfig& config = *layer.config;
  const LrpeType position = encode ? config.position.type : LrpeType::kNone;
  const int64_t angles = LrpeAngles(position, config.head_dim);
  const int64_t keys =
      config.num_heads * LrpeOutputDim(position, config.head_dim);
  auto* const rows = reinterpret_cast<uint16_t*>(layer.scratch.data);
  *factors = {rows, rows + keys, rows + 2 * keys, 2 * layer.scratch.stride};
  LinearFactorsParams params = {};
  params.tokens = end - begin;
  params.num_heads = config.num_heads;
  params.head_dim = config.head_dim;
  params.value_dim = config.value_dim;
  params.q = Floats(layer.q) + begin * layer.q.stride;
  params.k = Floats(layer.k) + begin * layer.k.stride;
  params.v = Floats(layer.v) + begin * layer.v.stride;
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

absl::Status CudaLinear::Prefill(const Layer& layer, const Launch& launch,
                                 int64_t begin, int64_t end,
                                 cudaStream_t stream) {
  const LinearConfig& config = *layer.config;
  LinearPrefillParams params = {};
  params.num_heads = config.num_heads;
  params.value_dim = config.value_dim;
  if (MakesFactors(layer)) {
    Factors factors;
    RECURVE_RETURN_IF_ERROR(
        MakeFactors(layer, /*encode=*/true, begin, end, &factors, stream));
    params.head_dim = layer.key_dim();
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
    params.q = Floats(layer.q);
    params.k = Floats(layer.k);
    params.v = Floats(layer.v);
    params.stride = layer.q.stride;
    params.q_activation = config.q_activation;
    params.k_activation = config.k_activation;
    params.v_activation = config.v_activation;
    params.position = config.position.type;
    params.phase_steps = layer.phase_steps;
  }
  params.out_type = ElementType::kFloat32;
  params.out = Floats(layer.out);
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
  const LinearConfig& config = *layer.config;
  const bool encoded = layer.key_dim() <= kLinearNoncausalMaxDim;
  return config.head_dim <= kLinearNoncausalMaxDim &&
         config.value_dim <= kLinearNoncausalMaxDim &&
         (encoded || ExactAngles(config.position)) &&
         layer.slot_stride % 4 == 0;
}

absl::Status CudaLinear::PrefillWhole(const Layer& layer, const Launch& launch,
                                      const Stretch& stretch,
                                      cudaStream_t stream) const {
  const LinearConfig& config = *layer.config;
  const bool encoded = layer.key_dim() <= kLinearNoncausalMaxDim;
  Factors factors;
  RECURVE_RETURN_IF_ERROR(MakeFactors(layer, encoded, stretch.begin,
                                      stretch.end, &factors, stream));
  LinearNoncausalParams params = {};
  params.num_heads = config.num_heads;
  params.head_dim = encoded ? layer.key_dim() : config.head_dim;
  params.value_dim = config.value_dim;
  params.q = factors.q;
  params.k = factors.k;
  params.v = factors.v;
  params.stride = factors.stride;
  params.out_type = ElementType::kFloat32;
  params.out = Floats(layer.out);
  params.out_stride = layer.out.stride;
  params.query_start = launch.rows.query_start + stretch.first;
  params.max_rows = stretch.count;
  params.slots = launch.rows.slots + stretch.first;
  params.positions = launch.positions + stretch.first;
  params.q_activation = params.k_activation = Activation::kNone;
  params.position = encoded ? LrpeType::kNone : config.position.type;
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
                 group.launch.positions + stretch.first},
                stretch.begin, stretch.end, stream));
  }
  return absl::OkStatus();
}

absl::Status CudaLinear::Attend(const Layer& layer, cudaStream_t stream) {
  const bool causal = layer.config->causal;
  if (decode_ || !PrefillsByChunks(layer) || (!causal && !FusesWhole(layer))) {
    // In other steps a sequence's runs are adjacent.
    return Scan(layer, rows_, /*early=*/decode_, stream);
  }
  for (const Group& group : groups_) {
    if (!group.prompt) {
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

}  // namespace recurve
