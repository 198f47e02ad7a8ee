#include "engine/cuda_linear.h"

#include "base/status_macros.h"
#include "kernels/linear_attn/linear_prefill_cuda.h"
#include "kernels/linear_attn/linear_prefill_plan.h"
#include "kernels/linear_attn/linear_scan_cuda.h"
#include "kernels/linear_attn/linear_step_check.h"

namespace recurve {
namespace {

float* Floats(const Activations& a) { return reinterpret_cast<float*>(a.data); }

bool Aligned(const Activations& a) {
  return reinterpret_cast<uintptr_t>(a.data) % 16 == 0 && a.stride % 8 == 0;
}

}  // namespace

void CudaLinear::UseChunks() {
  if (device_.hopper) chunk_multiple_ = kLinearPrefillChunk;
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
  groups_.clear();
  if (chunk_multiple_ == 1) return;
  for (const std::vector<StepRun>& runs_of : RunGroups(runs)) {
    Group group = {};
    group.prompt = !runs_of.front().step;
    group.rows.count = static_cast<int64_t>(runs_of.size());
    int32_t* const query_start =
        step->Add(group.rows.count + 1, &group.rows.query_start);
    int32_t* const slots = step->Add(group.rows.count, &group.rows.slots);
    int64_t* const positions = step->Add(group.rows.count, &group.positions);
    for (int64_t i = 0; i < group.rows.count; ++i) {
      const StepRun& run = runs_of[i];
      query_start[i] = static_cast<int32_t>(run.begin);
      query_start[i + 1] = static_cast<int32_t>(run.end);
      slots[i] = batch.slots[run.sequence];
      positions[i] = batch.positions[run.begin];
    }
    groups_.push_back(group);
  }
}

bool CudaLinear::PrefillsByChunks(const Layer& layer) const {
  const LinearConfig& config = *layer.config;
  const PositionConfig& position = config.position;
  return chunk_multiple_ > 1 && ValidLinearDim(config.head_dim) &&
         ValidLinearDim(config.value_dim) && config.num_heads <= 65535 / 4 &&
         layer.v.stride == layer.q.stride && Aligned(layer.q) &&
         Aligned(layer.k) && Aligned(layer.v) && Aligned(layer.out) &&
         !position.float32_angles && position.log_decay == 0 &&
         !position.bfloat16_tables &&
         PlanLinearPrefill(position.type, config.head_dim, config.value_dim,
                           config.num_heads, 1, device_.multiprocessors,
                           device_.shared_memory)
                 .stages >= kLinearPrefillMinStages;
}

absl::Status CudaLinear::Scan(const Layer& layer, const Rows& rows,
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
  return CudaStatus(LaunchLinearScan(params, stream), "linear attention");
}

absl::Status CudaLinear::Prefill(const Layer& layer, const Group& group,
                                 cudaStream_t stream) {
  const LinearConfig& config = *layer.config;
  LinearPrefillParams params = {};
  params.num_heads = config.num_heads;
  params.head_dim = config.head_dim;
  params.value_dim = config.value_dim;
  params.io_type = ElementType::kFloat32;
  params.q = Floats(layer.q);
  params.k = Floats(layer.k);
  params.v = Floats(layer.v);
  params.stride = layer.q.stride;
  params.out = Floats(layer.out);
  params.out_stride = layer.out.stride;
  params.query_start = group.rows.query_start;
  params.max_rows = group.rows.count;
  params.slots = group.rows.slots;
  params.positions = group.positions;
  params.q_activation = config.q_activation;
  params.k_activation = config.k_activation;
  params.v_activation = config.v_activation;
  params.position = config.position.type;
  params.phase_steps = layer.phase_steps;
  params.scale = 1;
  params.decay = layer.decay;
  params.states = layer.states;
  params.slot_stride = layer.slot_stride;
  return CudaStatus(LaunchLinearPrefill(params, stream),
                    "linear attention of prompts");
}

absl::Status CudaLinear::Attend(const Layer& layer, cudaStream_t stream) {
  if (decode_ || !PrefillsByChunks(layer)) return Scan(layer, rows_, stream);
  for (const Group& group : groups_) {
    RECURVE_RETURN_IF_ERROR(group.prompt ? Prefill(layer, group, stream)
                                         : Scan(layer, group.rows, stream));
  }
  return absl::OkStatus();
}

}  // namespace recurve
