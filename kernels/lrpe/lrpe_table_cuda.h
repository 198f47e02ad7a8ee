#ifndef RECURVE_KERNELS_LRPE_LRPE_TABLE_CUDA_H_
#define RECURVE_KERNELS_LRPE_LRPE_TABLE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace recurve {

// The tables of kernels/lrpe/lrpe.h (LrpeTable and LrpeFloat32Table) on the
// GPU. Every pointer is device memory. Neither allocates nor synchronises.
struct CudaLrpeTableParams {
  const uint64_t* phase_steps;  // [angles] of LrpePhaseSteps: exact angles
  const float* theta;           // [angles], used where phase_steps is null
  const int64_t* positions;     // [rows]; negative counts as 0
  float* cos;                   // [rows, angles]
  float* sin;                   // [rows, angles]
  int64_t rows;
  int64_t angles;
  // With theta only, as LrpeFloat32TableParams.
  float log_decay;
  bool round_to_bfloat16;
};
// cudaErrorInvalidValue for negative sizes, or without angles to use.
cudaError_t LaunchLrpeTable(const CudaLrpeTableParams& params,
                            cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_TABLE_CUDA_H_
