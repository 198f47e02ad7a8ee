#include "engine/cuda/cuda_positions.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/lrpe/lrpe_table_cuda.h"

namespace recurve {
namespace {

template <typename T>
absl::Status Upload(const std::vector<T>& values, CudaMemory* memory) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  RECURVE_ASSIGN_OR_RETURN(
      *memory, CudaMemory::Allocate(kDevice, bytes, "position angles"));
  return CudaStatus(
      cudaMemcpy(memory->data(), values.data(), bytes, cudaMemcpyHostToDevice),
      "copying position angles");
}

}  // namespace

absl::StatusOr<PositionId> CudaPositions::Load(const PositionConfig& config,
                                               int64_t rows) {
  for (size_t i = 0; i < encodings_.size(); ++i) {
    if (encodings_[i].config == config) {
      return PositionId{static_cast<int32_t>(i)};
    }
  }
  Encoding encoding;
  encoding.config = config;
  encoding.angles = static_cast<int64_t>(config.theta.size());
  if (encoding.angles > 0) {
    if (config.float32_angles) {
      RECURVE_RETURN_IF_ERROR(
          Upload(std::vector<float>(config.theta.begin(), config.theta.end()),
                 &encoding.theta));
    } else {
      RECURVE_RETURN_IF_ERROR(
          Upload(LrpePhaseSteps(config.theta), &encoding.phase_steps));
    }
  }
  const int64_t bytes =
      rows * encoding.angles * static_cast<int64_t>(sizeof(float));
  for (CudaMemory* table : {&encoding.cos, &encoding.sin}) {
    RECURVE_ASSIGN_OR_RETURN(
        *table,
        CudaMemory::Allocate(
            kDevice, bytes, "position tables; lower --max-num-batched-tokens"));
  }
  encodings_.push_back(std::move(encoding));
  return PositionId{static_cast<int32_t>(encodings_.size()) - 1};
}

absl::Status CudaPositions::Compute(const int64_t* positions, int64_t first_row,
                                    int64_t count, cudaStream_t stream) const {
  if (count == 0) return absl::OkStatus();
  for (const Encoding& encoding : encodings_) {
    if (encoding.angles == 0) continue;
    CudaLrpeTableParams params = {};
    params.phase_steps = encoding.phase_steps.as<const uint64_t>();
    params.theta = encoding.theta.as<const float>();
    params.angles = encoding.angles;
    params.log_decay = encoding.config.log_decay;
    params.round_to_bfloat16 = encoding.config.bfloat16_tables;
    params.positions = positions;
    params.cos = encoding.cos.as<float>() + first_row * encoding.angles;
    params.sin = encoding.sin.as<float>() + first_row * encoding.angles;
    params.rows = count;
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(LaunchLrpeTable(params, stream), "position tables"));
  }
  return absl::OkStatus();
}

}  // namespace recurve
