// Schedule of a TPA prefill: one block lists query tiles, sorted by length in
// buckets, longest first, and key tiles.
// Shapes: query_start [rows + 1], lengths [rows]; tiles of 32 bytes, key tiles
// of 16.
// Floor: 8 · rows + 64 · query tiles + 16 · key tiles bytes; bound by latency.
#include "kernels/common/block_sum.cuh"
#include "kernels/tpa/prefill/tpa_prefill_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 1024;
constexpr int kBuckets = 1024;  // of lengths, for sorting

struct Args {
  TpaPrefillScheduleParams p;
  TpaPrefillSchedule parts;
  int rows;
  int query_tile;
  int key_tile;
  int max_query_tiles;
  int max_key_tiles;

  template <typename T>
  __device__ T* At(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(p.schedule) + offset);
  }
};

__global__ void __launch_bounds__(kThreads)
    tpa_prefill_schedule_kernel(const __grid_constant__ Args args) {
  __shared__ int warp_sums[kThreads / 32];
  __shared__ int buckets[kBuckets];
  __shared__ int longest;
  __shared__ int kept_tiles;
  __shared__ int kept_keys;
  __shared__ int row_first[kThreads];  // of these rows: their first query tile,
  __shared__ int row_tiles[kThreads];  // count,
  __shared__ int row_token[kThreads];  // first new token,
  __shared__ int row_queries[kThreads];
  __shared__ int row_length[kThreads];
  __shared__ int row_first_key[kThreads];
  __shared__ int row_keys[kThreads];  // and number of key tiles
  if (threadIdx.x == 0) {
    longest = 1;
    kept_tiles = kept_keys = 0;
  }
  buckets[threadIdx.x] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  TpaPrefillTile* by_slot = args.At<TpaPrefillTile>(args.parts.by_slot);
  int query_tiles = 0;
  int key_tiles = 0;
  for (int first = 0; first < args.rows; first += kThreads) {
    const int b = first + static_cast<int>(threadIdx.x);
    int queries = 0;
    int length = 0;
    if (b < args.rows) {
      queries = args.p.query_start[b + 1] - args.p.query_start[b];
      length = args.p.lengths[b];
    }
    if (queries < 0 || queries > length) queries = 0;
    int tiles = (queries + args.query_tile - 1) / args.query_tile;
    int keys = queries == 0 ? 0 : (length + args.key_tile - 1) / args.key_tile;
    const int2 tile_sum = ExclusiveSum<kThreads>(tiles, warp_sums);
    const int2 key_sum = ExclusiveSum<kThreads>(keys, warp_sums);
    const int first_tile = query_tiles + tile_sum.x;
    const int first_key = key_tiles + key_sum.x;
    // If the host's limits are wrong, nothing is written beyond them. The last
    // rows are then left out: sums grow with the rows.
    if (first_tile + tiles > args.max_query_tiles ||
        first_key + keys > args.max_key_tiles) {
      tiles = keys = 0;
    }
    row_first[threadIdx.x] = first_tile;
    row_tiles[threadIdx.x] = tiles;
    row_token[threadIdx.x] = b < args.rows ? args.p.query_start[b] : 0;
    row_queries[threadIdx.x] = queries;
    row_length[threadIdx.x] = length;
    row_first_key[threadIdx.x] = first_key;
    row_keys[threadIdx.x] = keys;
    if (keys > 0) {
      atomicMax(&longest, keys);
      atomicMax(&kept_tiles, first_tile + tiles);
      atomicMax(&kept_keys, first_key + keys);
    }
    __syncthreads();
    for (int i = warp; i < kThreads && first + i < args.rows;
         i += kThreads / 32) {
      for (int tile = lane; tile < row_tiles[i]; tile += 32) {
        const int slot = row_first[i] + tile;
        const int begin = tile * args.query_tile;
        const int count = min(args.query_tile, row_queries[i] - begin);
        const int position = row_length[i] - row_queries[i] + begin;
        by_slot[slot] = {first + i,
                         row_length[i],
                         position,
                         row_token[i] + begin,
                         count,
                         (position + count + args.key_tile - 1) / args.key_tile,
                         row_first_key[i],
                         slot};
      }
      for (int key = lane; key < row_keys[i]; key += 32) {
        args.At<TpaPrefillKeyTile>(args.parts.keys)[row_first_key[i] + key] = {
            first + i, row_length[i], key, 0};
      }
    }
    query_tiles += tile_sum.y;
    key_tiles += key_sum.y;
    __syncthreads();
  }
  query_tiles = kept_tiles;
  key_tiles = kept_keys;
  // By length, longest first; the order within a bucket does not matter.
  const auto bucket = [&](int keys) {
    return static_cast<int>(int64_t{longest - keys} * (kBuckets - 1) / longest);
  };
  for (int i = threadIdx.x; i < query_tiles; i += kThreads) {
    atomicAdd(&buckets[bucket(by_slot[i].key_tiles)], 1);
  }
  __syncthreads();
  const int2 place = ExclusiveSum<kThreads>(buckets[threadIdx.x], warp_sums);
  buckets[threadIdx.x] = place.x;
  __syncthreads();
  TpaPrefillTile* by_length = args.At<TpaPrefillTile>(args.parts.by_length);
  for (int i = threadIdx.x; i < query_tiles; i += kThreads) {
    const TpaPrefillTile tile = by_slot[i];
    by_length[atomicAdd(&buckets[bucket(tile.key_tiles)], 1)] = tile;
  }
  if (threadIdx.x == 0) {
    *args.At<TpaPrefillHeader>(0) = {0, query_tiles, key_tiles, 0};
  }
}

}  // namespace

cudaError_t LaunchTpaPrefillSchedule(const TpaPrefillScheduleParams& params,
                                     const TpaPrefillPlan& plan,
                                     cudaStream_t stream) {
  if (plan.query_tiles == 0 || params.query_start == nullptr ||
      params.lengths == nullptr || params.schedule == nullptr ||
      reinterpret_cast<uintptr_t>(params.schedule) % 128 != 0) {
    return cudaErrorInvalidValue;
  }
  const Args args = {
      params,        TpaPrefillSchedule(plan.query_tiles, plan.key_tiles),
      plan.max_rows, plan.query_tile,
      plan.key_tile, plan.query_tiles,
      plan.key_tiles};
  tpa_prefill_schedule_kernel<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace recurve
