#ifndef RECURVE_ENGINE_CUDA_CUDA_MODEL_LIMITS_H_
#define RECURVE_ENGINE_CUDA_CUDA_MODEL_LIMITS_H_

#include "absl/status/status.h"
#include "engine/models/config.h"

namespace recurve {

// InvalidArgument, naming layer, field and limit, for a model that the kernels
// of the CudaBackend do not support.
absl::Status CheckCudaModel(const ModelDefinition& model);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_MODEL_LIMITS_H_
