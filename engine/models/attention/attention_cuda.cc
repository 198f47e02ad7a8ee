#include "base/check.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/models/attention/attention_operation.h"

namespace recurve {

std::unique_ptr<CudaOperations> AttentionOperation::MakeCudaOperations(
    const CudaOperationLimits& /*limits*/) const {
  RECURVE_CHECK(false);  // AttentionLayer::CheckGpu refuses it
  return nullptr;
}

}  // namespace recurve
