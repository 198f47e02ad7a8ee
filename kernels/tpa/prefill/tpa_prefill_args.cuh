// Arguments and launch helpers shared by the prefill kernels.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ARGS_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ARGS_CUH_

#include "kernels/tpa/prefill/tpa_prefill_cuda.h"

namespace recurve {

// One group of heads of a launch. Scratch memory holds 16-bit elements in cores
// of 8 rows of 8 (tpa_layout.h):
//
//   queries [heads][slot][64 queries]    each [width / 8][64][8]
//   keys    [heads][key tile]            each [width / 8][key_tile][8], and
//   then values                               [page][width / 8][64][8]
struct TpaPrefillArgs {
  TpaPrefillParams p;
  TpaPageLayout layout;
  TpaPrefillSchedule parts;
  int first_head;
  int heads;       // of this group
  int query_tile;  // of the plan, as what follows
  int key_tile;
  int width;
  int query_tiles;
  int64_t query_bytes;
  int64_t context_bytes;
  char* contexts;  // beginning of keys and values

  template <typename T>
  __device__ T* Scheduled(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(p.schedule) + offset);
  }
  __device__ const TpaPrefillHeader& header() const {
    return *Scheduled<TpaPrefillHeader>(0);
  }
  // Queries of head `head` of the group.
  __device__ char* Queries(int head, int slot) const {
    return static_cast<char*>(p.scratch) + head * query_bytes +
           int64_t{2} * slot * query_tile * width;
  }
  __device__ char* Context(int head, int64_t key_tile_index) const {
    return contexts + head * context_bytes +
           4 * key_tile_index * key_tile * width;
  }
  __device__ const int32_t* PageTable(int row) const {
    return p.cache.page_table + row * p.cache.page_table_stride;
  }
  __device__ const char* PageAt(int64_t page) const {
    return static_cast<const char*>(p.cache.pages) +
           2 * page * p.cache.page_stride;
  }
};

// Launches a prefill kernel that may start while the previous one ends (and
// waits for it itself, where needed).
template <typename... Params, typename... Args>
cudaError_t LaunchTpaPrefillNext(void (*kernel)(Params...), dim3 blocks,
                                 int threads, int shared_bytes,
                                 cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

// Forms the group's queries (times all factors of a score), keys and values in
// scratch memory, and zeroes the counter of items.
cudaError_t LaunchTpaPrefillPrepare(const TpaPrefillArgs& args,
                                    const TpaPrefillPlan& plan,
                                    int multiprocessors, cudaStream_t stream);
// Attends.
cudaError_t LaunchTpaPrefillAttend(const TpaPrefillArgs& args,
                                   const TpaPrefillPlan& plan,
                                   int multiprocessors, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ARGS_CUH_
