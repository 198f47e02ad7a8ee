// Launcher of TPA decode: parameter checks, sizes of schedules and scratch
// memory, and the choice between tpa_decode_hopper_*.cu and
// tpa_decode_portable.cu.
#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/device_attribute.h"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_kernel.cuh"
#include "kernels/tpa/tpa_query.cuh"

namespace recurve {
namespace {

int64_t MaxLength(const TpaCudaDecodeParams& p) {
  return kTpaPageTokens * p.cache.page_table_stride;
}

bool ValidOut(const TpaCudaDecodeParams& p) {
  if (p.out == nullptr) return false;
  if (p.out_type == WeightType::kFloat32) return true;
  return p.out_type == TpaWeightType(p.cache.element) && IsAligned(p.out, 8);
}

// Producers follow the plan, consumers the kernel instance.
bool ValidEarlyKeys(const TpaCudaDecodeParams& p, const TpaDecodePlan& plan) {
  const auto rank = static_cast<int>(p.shape.kv_rank);
  const bool head_rows =
      kTpaVariants[plan.variant].columns == kTpaHeadRowsHeads;
  if (head_rows || plan.early_keys == kTpaInOrder) {
    return head_rows && plan.early_keys == kTpaInOrder && plan.hopper &&
           plan.head_blocks == 1 && plan.groups == 1 && rank <= 2 &&
           plan.stages >= 2 * rank && p.new_tokens == 1 &&
           p.shape.head_dim == 64 && p.shape.value_dim == 64;
  }
  if (plan.early_keys == 0) return true;
  const int tiles = kTpaVariants[plan.variant].value_tiles;
  return rank <= 2 && plan.early_keys == TpaEarlyRanks(tiles, rank) &&
         plan.stages >= rank + plan.early_keys;
}

bool ValidClusters(const TpaCudaDecodeParams& p, const TpaDecodePlan& plan) {
  return plan.hopper && plan.early_keys > 0 && p.new_tokens == 1 &&
         p.shape.head_dim == 64 && p.shape.value_dim == 64 &&
         plan.cluster_blocks == kTpaClusterBlocks &&
         plan.blocks == p.rows * kTpaClusterBlocks && plan.groups == 1 &&
         plan.lanes == kTpaClusterLanes &&
         plan.stages >= kTpaClusterPages * 2 * p.shape.kv_rank &&
         plan.form == TpaDecodeForm::kParallelBn &&
         kTpaVariants[plan.variant].columns == 24 && plan.group_octets <= 3;
}

// For a launch that appends.
bool ValidFactors(const TpaCudaDecodeParams& p, const TpaDecodePlan& plan) {
  const TpaCudaFactors& f = p.factors;
  return TpaDecodeAppends(p.shape, plan) && p.new_tokens == 1 &&
         p.fresh_tokens >= 1 &&
         (plan.cluster_blocks == 0 || p.fresh_tokens == 1) &&
         f.a_k != nullptr && f.b_k != nullptr && f.a_v != nullptr &&
         f.b_v != nullptr && f.b_q != nullptr && f.a_q != nullptr &&
         f.position != LrpeType::kCosine &&
         (f.position == LrpeType::kNone ||
          (f.cos != nullptr && f.sin != nullptr)) &&
         f.activation == Activation::kNone;
}

bool Valid(const TpaCudaDecodeParams& p, const TpaDecodePlan& plan) {
  const TpaPageLayout layout(p.shape, TpaPageOrder::kOctets);
  const bool split = plan.form == TpaDecodeForm::kParallelBn;
  return TpaDecodeSupports(p.shape) && ValidOut(p) && plan.blocks > 0 &&
         p.rows > 0 && p.rows <= kTpaMaxRows &&
         (split || plan.blocks == p.rows) && ValidEarlyKeys(p, plan) &&
         (plan.cluster_blocks == 0 || ValidClusters(p, plan)) &&
         plan.groups * plan.group_octets * plan.head_blocks >=
             p.new_tokens * TpaHeadOctets(p.shape) &&
         // Every block has a column.
         plan.groups * plan.group_octets * (plan.head_blocks - 1) <
             p.new_tokens * TpaHeadOctets(p.shape) &&
         p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         IsThere(p.cache.pages) && p.cache.page_table != nullptr &&
         IsAligned(p.queries) &&
         (p.queries != nullptr || ValidFactors(p, plan)) && p.next_bytes >= 0 &&
         (p.next != nullptr || p.next_bytes == 0) && IsAligned(p.next) &&
         p.fresh_tokens >= 0 && p.new_tokens >= 1 && p.new_tokens <= 8 &&
         TpaDecodeHolds(plan, p.rows, p.cache.page_table_stride) &&
         IsThere(p.schedule, 128) && IsThere(p.scratch, 256) &&
         p.scratch_bytes >= TpaDecodeScratchBytes(p, plan);
}

}  // namespace

bool TpaDecodeHolds(const TpaDecodePlan& plan, int rows,
                    int64_t page_table_stride) {
  const int64_t max_length = kTpaPageTokens * page_table_stride;
  if (max_length * rows > INT32_MAX) return false;
  if (plan.cluster_blocks > 0) return true;  // TpaMerger is not used
  const int segments = TpaSegmentCount(static_cast<int>(max_length));
  const int chunks = TpaChunkCount(static_cast<int>(max_length));
  const int loose = plan.form == TpaDecodeForm::kParallelBn
                        ? 2 * kTpaSegmentChunks * plan.blocks
                        : 0;
  // A row's only segment counts as its chunks (TpaMerger).
  return TpaMergeQuads(
             plan.lanes * plan.stages * plan.stage_bytes,
             std::min(segments + loose, chunks),
             std::max(segments, std::min(chunks, kTpaSegmentChunks))) > 0;
}

int64_t TpaDecodeScratchBytes(const TpaCudaDecodeParams& params,
                              const TpaDecodePlan& plan) {
  return TpaDecodeScratch(params.shape, plan, params.rows, params.new_tokens,
                          MaxLength(params))
      .bytes;
}

int64_t TpaScheduleBytes(const TpaDecodePlan& plan, int rows,
                         int64_t page_table_stride) {
  return TpaScheduleParts(plan, rows, kTpaPageTokens * page_table_stride).bytes;
}

cudaError_t GetTpaAttributes(TpaDevice* device) {
  int major = 0;
  cudaError_t error = cudaSuccess;
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = DeviceAttribute(attribute, value);
  };
  get(&device->multiprocessors, cudaDevAttrMultiProcessorCount);
  get(&device->shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  get(&major, cudaDevAttrComputeCapabilityMajor);
  device->hopper = major == 9;
  device->clusters = 0;
  return error;
}

cudaError_t GetTpaDevice(TpaDevice* device) {
  const cudaError_t error = GetTpaAttributes(device);
  if (error == cudaSuccess && device->hopper)
    device->clusters = CountTpaClusters(device->shared_memory);
  return error;
}

cudaError_t LaunchTpaDecode(const TpaCudaDecodeParams& params,
                            const TpaDecodePlan& plan, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  if (!Valid(params, plan)) return cudaErrorInvalidValue;
  const TpaDecodeArgs args = {
      params,
      TpaPageLayout(params.shape, TpaPageOrder::kOctets),
      TpaDecodeScratch(params.shape, plan, params.rows, params.new_tokens,
                       MaxLength(params)),
      TpaScheduleParts(plan, params.rows, MaxLength(params)),
      TpaHeadOctets(params.shape),
      params.new_tokens * TpaHeadOctets(params.shape),
      static_cast<int>(2 * TpaQueryOctetElements(params.shape)),
      plan.group_octets,
      plan.groups,
      plan.lanes,
      plan.stages,
      plan.stage_bytes,
      plan.early_keys,
      TpaQueryScale(params.shape),
      0};
  if (!plan.hopper) return LaunchTpaPortable(args, plan, stream);
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchTpaHopperBFloat16(args, plan, stream)
             : LaunchTpaHopperFloat16(args, plan, stream);
}

}  // namespace recurve
