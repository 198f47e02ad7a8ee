// Launcher of softmax attention decode: the kernel in attention_worker.cuh for
// 16-bit caches on sm_90, else that in attention_plain.cuh.
// Shapes: queries [rows, H, D], contexts of L tokens in pages, out [rows, H,
// E]. Floor: memory: G · (D + E) elements for each token of a row.
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/decode/attention_plain.cuh"
#include "kernels/attention/decode/attention_worker.cuh"
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/shared_memory.h"

namespace recurve {
namespace {

template <typename T, int kWidth, int kOctets>
cudaError_t LaunchOctets(const AttentionDecodeArgs& args,
                         const AttentionPlan& plan, cudaStream_t stream) {
  const auto kernel = attention_decode_kernel<T, kWidth, kOctets>;
  const cudaError_t error = AllowSharedMemory(kernel, plan.shared_bytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(plan.blocks)),
                         kAttentionThreads<kWidth, kOctets>, plan.shared_bytes,
                         stream, args);
}

template <typename T, int kWidth>
cudaError_t LaunchWidth(const AttentionDecodeArgs& args,
                        const AttentionPlan& plan, cudaStream_t stream) {
  return plan.octets == 1 ? LaunchOctets<T, kWidth, 1>(args, plan, stream)
                          : LaunchOctets<T, kWidth, 2>(args, plan, stream);
}

template <typename T>
cudaError_t LaunchTensor(const AttentionDecodeArgs& args,
                         const AttentionPlan& plan, cudaStream_t stream) {
  switch (plan.width) {
    case 64:
      return LaunchWidth<T, 64>(args, plan, stream);
    case 128:
      return LaunchWidth<T, 128>(args, plan, stream);
    case 256:
      return LaunchWidth<T, 256>(args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename T>
cudaError_t LaunchPlain(const AttentionDecodeArgs& args,
                        const AttentionPlan& plan, cudaStream_t stream) {
  return LaunchDependent(
      attention_plain_kernel<T>, dim3(static_cast<unsigned>(plan.blocks)),
      128 * plan.octets, AttentionPlainBytes(plan.octets), stream, args);
}

bool SameShape(const AttentionShape& a, const AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.value_dim == b.value_dim;
}

bool Valid(const AttentionCudaDecodeParams& p, const AttentionPlan& plan,
           const AttentionPageLayout& layout) {
  return plan.blocks > 0 && SameShape(p.shape, plan.shape) &&
         p.cache.element == plan.element && p.rows <= kAttentionMaxRows &&
         p.fresh_tokens >= 0 && p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         p.cache.page_table_stride >= 1 && IsThere(p.cache.pages) &&
         p.cache.page_table != nullptr && IsThere(p.queries) &&
         AttentionOutputValid(p.shape, p.out) && IsThere(p.schedule, 128) &&
         IsThere(p.scratch, 256) &&
         p.scratch_bytes >=
             AttentionScratchBytes(plan, p.rows, p.cache.page_table_stride);
}

}  // namespace

bool AttentionOutputValid(const AttentionShape& shape,
                          const AttentionCudaOutput& out) {
  const int64_t width = shape.num_heads * shape.value_dim;
  return IsThere(out.data) && out.stride % 8 == 0 && out.stride >= width &&
         IsAligned(out.gate) &&
         (out.gate == nullptr ||
          (out.gate_stride % 4 == 0 && out.gate_stride >= width));
}

cudaError_t GetAttentionDevice(AttentionDevice* device) {
  int major = 0;
  cudaError_t error =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &device->multiprocessors);
  if (error == cudaSuccess) {
    error = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin,
                            &device->shared_memory);
  }
  if (error == cudaSuccess) {
    error = DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  }
  device->hopper = major == 9;
  return error;
}

cudaError_t LaunchAttentionDecode(const AttentionCudaDecodeParams& params,
                                  const AttentionPlan& plan,
                                  cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  const AttentionPageLayout layout(params.shape,
                                   AttentionOrderOf(params.cache.element));
  if (params.rows < 0 || !Valid(params, plan, layout)) {
    return cudaErrorInvalidValue;
  }
  const AttentionScratchParts scratch =
      AttentionScratch(plan, params.rows, params.cache.page_table_stride);
  char* const memory = static_cast<char*>(params.scratch);
  const AttentionDecodeArgs args = {
      params,
      layout,
      AttentionScheduleParts(plan, params.rows),
      plan.octets,
      plan.stages,
      plan.stage_bytes,
      static_cast<int>(AttentionGroup(params.shape)),
      reinterpret_cast<float2*>(memory + scratch.max_sum),
      reinterpret_cast<float*>(memory + scratch.partials)};
  const bool bfloat16 = params.cache.element == WeightType::kBFloat16;
  if (plan.tensor) {
    return bfloat16 ? LaunchTensor<__nv_bfloat16>(args, plan, stream)
                    : LaunchTensor<__half>(args, plan, stream);
  }
  if (params.cache.element == WeightType::kFloat32) {
    return LaunchPlain<float>(args, plan, stream);
  }
  return bfloat16 ? LaunchPlain<__nv_bfloat16>(args, plan, stream)
                  : LaunchPlain<__half>(args, plan, stream);
}

}  // namespace recurve
