// Times GPU work with cold caches, and writes results as JSON.
#ifndef RECURVE_BENCH_CUDA_GPU_TIMER_H_
#define RECURVE_BENCH_CUDA_GPU_TIMER_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace recurve {
namespace bench {

// Ends the program with the location and the error.
#define RECURVE_CUDA_OK(call) \
  ::recurve::bench::CheckCuda((call), __FILE__, __LINE__)
void CheckCuda(cudaError_t error, const char* file, int line);

// Device memory for the life of the process, filled with values in [-1, 1).
void* RandomMemory(int64_t bytes, bool bfloat16);
template <typename T>
T* DeviceCopy(const std::vector<T>& host) {
  void* data = nullptr;
  RECURVE_CUDA_OK(cudaMalloc(&data, host.size() * sizeof(T)));
  RECURVE_CUDA_OK(cudaMemcpy(data, host.data(), host.size() * sizeof(T),
                             cudaMemcpyHostToDevice));
  return static_cast<T*>(data);
}

// Medians, in microseconds. No cache holds the data at the start. Before each
// the device rests until its clock is at its highest again, or for 5 s: after
// work at the power limit the clock stays low for up to seconds, and would
// distort the next shape.
struct Timing {
  double graph_us;   // one call as a graph, between two events
  double launch_us;  // one plain call, between two events
  double chain_us;   // of `nodes` calls in one graph, each one's share
  double cold_us;    // as graph_us, but right after the flush
  // Clock of the multiprocessors right after graph_us: below the device's
  // highest if this shape itself reaches the power limit.
  double clock_mhz;
};

// `enqueue(stream, i)` puts call i on the stream. Calls of one chain should use
// different data, enough that none is cached when it is read.
//
// In a model a kernel has just run on another layer's data, so its code, and
// data that all layers share, are cached. If call 1 is `distinct`, without data
// of call 0, graph_us and launch_us are measured like that: a flush, call 1,
// and call 0, which is timed. Otherwise they directly follow the flush, with
// instructions from memory, too.
using Enqueue = std::function<cudaError_t(cudaStream_t, int)>;
Timing Measure(const Enqueue& enqueue, int nodes, bool distinct);
// Its chain_us alone.
double MeasureChain(const Enqueue& enqueue, int nodes);

// Bytes per microsecond of this device: read and written by a large copy, and
// read by a read-only kernel.
struct Ceilings {
  double copy;
  double read;
  double empty_graph_us;  // a graph with an empty kernel between two events
};
Ceilings MeasureCeilings();

// Selection of measurements.
struct BenchOptions {
  bool quick = false;  // leave out shapes without a target
  std::string shape;   // only shapes with this in their names
  bool Wants(const std::string& name) const {
    return name.find(shape) != std::string::npos;
  }
};

// A row of results.
struct Result {
  std::string op;
  std::string shape;
  Timing timing;
  double bytes;        // that must move
  double flops = 0.0;  // in matrix products, if they dominate
};
void Print(const Ceilings& ceilings, const std::vector<Result>& results);
void WriteJson(const std::string& path, const std::string& commit,
               const Ceilings& ceilings, const std::vector<Result>& results);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_GPU_TIMER_H_
