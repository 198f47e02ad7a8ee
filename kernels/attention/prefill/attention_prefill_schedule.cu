// Schedule of a prefill of softmax attention: one block lists query tiles,
// sorted by length in buckets, longest first.
// Shapes: query_start [rows + 1], lengths [rows]; tiles of 32 bytes.
// Floor: 12 · rows + 64 · query tiles bytes; bound by latency.
#include "kernels/attention/prefill/attention_prefill_cuda.h"
#include "kernels/common/alignment.h"
#include "kernels/common/block_sum.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 1024;
constexpr int kBuckets = 1024;  // of lengths, for sorting

struct Args {
  AttentionPrefillScheduleParams p;
  AttentionPrefillSchedule parts;
  int rows;
  int query_tile;
  int key_tile;
  int max_query_tiles;

  template <typename T>
  __device__ T* At(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(p.schedule) + offset);
  }
};

// A row of the launch, and where its tiles are.
struct Row {
  int table_row;
  int length;
  int queries;
  int token;  // first new token
  int first;  // tile
  int tiles;
};

__global__ void __launch_bounds__(kThreads)
    attention_prefill_schedule_kernel(const __grid_constant__ Args args) {
  __shared__ int warp_sums[kThreads / 32];
  __shared__ int buckets[kBuckets];
  __shared__ int longest;
  __shared__ int kept_tiles;
  __shared__ Row rows[kThreads];
  if (threadIdx.x == 0) {
    longest = 1;
    kept_tiles = 0;
  }
  buckets[threadIdx.x] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  auto* const by_slot = args.At<AttentionPrefillTile>(args.parts.by_slot);
  int query_tiles = 0;
  int key_tiles = 0;
  for (int first = 0; first < args.rows; first += kThreads) {
    const int b = first + static_cast<int>(threadIdx.x);
    Row row = {};
    if (b < args.rows) {
      row.token = args.p.query_start[b];
      row.queries = args.p.query_start[b + 1] - row.token;
      row.length = args.p.lengths[b];
      row.table_row =
          args.p.row_sequence == nullptr ? b : args.p.row_sequence[b];
    }
    if (row.queries < 0 || row.queries > row.length) row.queries = 0;
    row.tiles = (row.queries + args.query_tile - 1) / args.query_tile;
    const int2 tile_sum = ExclusiveSum<kThreads>(row.tiles, warp_sums);
    row.first = query_tiles + tile_sum.x;
    // If the host's limits are wrong, nothing is written beyond them. The last
    // rows are then left out: sums grow with the rows.
    if (row.first + row.tiles > args.max_query_tiles) row.tiles = 0;
    const int keys =
        row.tiles == 0 ? 0 : (row.length + args.key_tile - 1) / args.key_tile;
    rows[threadIdx.x] = row;
    if (row.tiles > 0) {
      atomicMax(&longest, keys);
      atomicMax(&kept_tiles, row.first + row.tiles);
    }
    const int2 key_sum = ExclusiveSum<kThreads>(keys, warp_sums);
    for (int i = warp; i < kThreads && first + i < args.rows;
         i += kThreads / 32) {
      const Row of = rows[i];
      for (int tile = lane; tile < of.tiles; tile += 32) {
        const int slot = of.first + tile;
        const int begin = tile * args.query_tile;
        const int count = min(args.query_tile, of.queries - begin);
        const int position = of.length - of.queries + begin;
        by_slot[slot] = {of.table_row,
                         of.length,
                         position,
                         of.token + begin,
                         count,
                         (position + count + args.key_tile - 1) / args.key_tile,
                         slot,
                         0};
      }
    }
    query_tiles += tile_sum.y;
    key_tiles += key_sum.y;
    __syncthreads();
  }
  query_tiles = kept_tiles;
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
  auto* const by_length = args.At<AttentionPrefillTile>(args.parts.by_length);
  for (int i = threadIdx.x; i < query_tiles; i += kThreads) {
    const AttentionPrefillTile tile = by_slot[i];
    by_length[atomicAdd(&buckets[bucket(tile.key_tiles)], 1)] = tile;
  }
  if (threadIdx.x == 0) {
    *args.At<AttentionPrefillHeader>(0) = {0, query_tiles, key_tiles, 0};
  }
}

}  // namespace

cudaError_t LaunchAttentionPrefillSchedule(
    const AttentionPrefillScheduleParams& params,
    const AttentionPrefillPlan& plan, cudaStream_t stream) {
  if (plan.query_tiles == 0 || params.query_start == nullptr ||
      params.lengths == nullptr || !IsThere(params.schedule, 128)) {
    return cudaErrorInvalidValue;
  }
  const Args args = {params,        AttentionPrefillSchedule(plan.query_tiles),
                     plan.max_rows, plan.query_tile,
                     plan.key_tile, plan.query_tiles};
  attention_prefill_schedule_kernel<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace recurve
