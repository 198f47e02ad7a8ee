// Timing of GPU work, with kernels that fill, read and flush memory, and read
// the clock.
// Shapes: arrays of N bytes.
// Floor: N bytes written (FillRandom) or read (ReadAll).
#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/output_file.h"
#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {
namespace {

constexpr int kRepeats = 41;
constexpr int64_t kFlushBytes = int64_t{512} << 20;

__global__ void FillRandom(uint32_t* out, int64_t words, bool bfloat16) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B9u + 0x85EBCA6Bu;
    x = (x ^ (x >> 15)) * 0x2C1B3C6Du;
    x = (x ^ (x >> 12)) * 0x297A2D39u;
    x ^= x >> 15;
    const auto value = [](uint32_t bits) {
      return static_cast<float>(bits & 0xffffu) * 0x1p-15f - 1.0f;
    };
    if (bfloat16) {
      const __nv_bfloat16 low = __float2bfloat16_rn(value(x));
      const __nv_bfloat16 high = __float2bfloat16_rn(value(x >> 16));
      out[i] = __bfloat16_as_ushort(low) |
               static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16;
    } else {
      out[i] = __float_as_uint(value(x) + value(x >> 16) * 0x1p-16f);
    }
  }
}

// Reads everything; writes only if the sum is a NaN that no data has.
__global__ void ReadAll(const uint4* in, int64_t count, uint32_t* out) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = in[i + j * step];
#pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
  }
  for (; i < count; i += step) sum ^= in[i].x;
  if (sum == 0x7fc12345u) *out = sum;
}

__global__ void Nothing() {}

// Cycles and nanoseconds of the same 200 us, between two ticks of the timer,
// which may be as rare as one a microsecond.
__global__ void ReadClock(int64_t* out) {
  int64_t before, begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(before));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  } while (begin == before);
  const int64_t cycles = clock64();
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < 200000);
  out[0] = clock64() - cycles;
  out[1] = now - begin;
}

double ClockMhz(cudaStream_t stream) {
  static int64_t* const result = DeviceCopy(std::vector<int64_t>(2));
  ReadClock<<<1, 1, 0, stream>>>(result);
  RECURVE_CUDA_OK(cudaGetLastError());
  int64_t host[2];
  RECURVE_CUDA_OK(cudaMemcpyAsync(host, result, sizeof(host),
                                  cudaMemcpyDeviceToHost, stream));
  RECURVE_CUDA_OK(cudaStreamSynchronize(stream));
  return 1e3 * host[0] / host[1];
}

// Waits until the clock is within 0.4% of the device's highest, or, if it was
// not after 5 s of rest (a lower limit is set), of the highest seen then.
void AwaitHighestClock(cudaStream_t stream) {
  static double goal = [] {
    int khz = 0;
    RECURVE_CUDA_OK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    return 1e-3 * khz;
  }();
  constexpr int kWaits = 100;
  double highest = 0.0;
  for (int i = 0; i < kWaits; ++i) {
    highest = std::max(highest, ClockMhz(stream));
    if (highest >= 0.996 * goal) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::fprintf(stderr,
               "the clock stays at %.0f of %.0f MHz: measuring with that\n",
               highest, goal);
  goal = highest;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The largest gap in a stream: work is queued behind a flush that takes longer
// than queueing, so that host time does not count.
class Stopwatch {
 public:
  Stopwatch() {
    RECURVE_CUDA_OK(cudaEventCreate(&start_));
    RECURVE_CUDA_OK(cudaEventCreate(&stop_));
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  // `before` runs between the flush and the work, and is not timed.
  double Time(
      cudaStream_t stream, const std::function<void()>& work,
      const std::function<void()>& before = [] {}) {
    AwaitHighestClock(stream);
    std::vector<double> times;
    for (int i = 0; i < kRepeats; ++i) {
      Flush(stream);
      before();
      RECURVE_CUDA_OK(cudaEventRecord(start_, stream));
      work();
      RECURVE_CUDA_OK(cudaEventRecord(stop_, stream));
      RECURVE_CUDA_OK(cudaEventSynchronize(stop_));
      float ms = 0.0f;
      RECURVE_CUDA_OK(cudaEventElapsedTime(&ms, start_, stop_));
      if (i > 3) times.push_back(1000.0 * ms);
    }
    return Median(times);
  }

 private:
  // By reading, so that no dirty lines are left to write back.
  static void Flush(cudaStream_t stream) {
    static void* memory = RandomMemory(kFlushBytes, false);
    ReadAll<<<528, 512, 0, stream>>>(static_cast<uint4*>(memory),
                                     kFlushBytes / 16,
                                     static_cast<uint32_t*>(memory));
    RECURVE_CUDA_OK(cudaGetLastError());
  }
  cudaEvent_t start_, stop_;
};

// A graph of calls [0, count).
class Graph {
 public:
  Graph(const Enqueue& enqueue, int count, cudaStream_t stream) {
    RECURVE_CUDA_OK(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) RECURVE_CUDA_OK(enqueue(stream, i));
    cudaGraph_t graph;
    RECURVE_CUDA_OK(cudaStreamEndCapture(stream, &graph));
    RECURVE_CUDA_OK(cudaGraphInstantiate(&exec_, graph, 0));
    RECURVE_CUDA_OK(cudaGraphDestroy(graph));
    RECURVE_CUDA_OK(cudaGraphUpload(exec_, stream));
  }
  ~Graph() { cudaGraphExecDestroy(exec_); }
  void Launch(cudaStream_t stream) {
    RECURVE_CUDA_OK(cudaGraphLaunch(exec_, stream));
  }

 private:
  cudaGraphExec_t exec_;
};

double TimeGraph(
    const Enqueue& enqueue, int count, cudaStream_t stream,
    const std::function<void()>& before = [] {}) {
  Graph graph(enqueue, count, stream);
  return Stopwatch().Time(
      stream, [&] { graph.Launch(stream); }, before);
}

}  // namespace

void CheckCuda(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, cudaGetErrorString(error));
  std::exit(1);
}

void* RandomMemory(int64_t bytes, bool bfloat16) {
  void* data = nullptr;
  RECURVE_CUDA_OK(cudaMalloc(&data, bytes));
  FillRandom<<<1024, 256>>>(static_cast<uint32_t*>(data), bytes / 4, bfloat16);
  RECURVE_CUDA_OK(cudaDeviceSynchronize());
  return data;
}

Timing Measure(const Enqueue& enqueue, int nodes, bool distinct) {
  cudaStream_t stream;
  RECURVE_CUDA_OK(cudaStreamCreate(&stream));
  Timing timing;
  RECURVE_CUDA_OK(enqueue(stream, 0));  // loads the code
  const auto other = [&] {
    if (distinct) RECURVE_CUDA_OK(enqueue(stream, 1));
  };
  timing.launch_us = Stopwatch().Time(
      stream, [&] { RECURVE_CUDA_OK(enqueue(stream, 0)); }, other);
  timing.graph_us = TimeGraph(enqueue, 1, stream, other);
  timing.clock_mhz = ClockMhz(stream);
  timing.cold_us = TimeGraph(enqueue, 1, stream);
  timing.chain_us = TimeGraph(enqueue, nodes, stream) / nodes;
  RECURVE_CUDA_OK(cudaStreamDestroy(stream));
  return timing;
}

double MeasureChain(const Enqueue& enqueue, int nodes) {
  cudaStream_t stream;
  RECURVE_CUDA_OK(cudaStreamCreate(&stream));
  RECURVE_CUDA_OK(enqueue(stream, 0));  // loads the code
  const double time = TimeGraph(enqueue, nodes, stream) / nodes;
  RECURVE_CUDA_OK(cudaStreamDestroy(stream));
  return time;
}

Ceilings MeasureCeilings() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  void* from = RandomMemory(kBytes, false);
  void* to = RandomMemory(kBytes, false);
  cudaStream_t stream;
  RECURVE_CUDA_OK(cudaStreamCreate(&stream));
  Ceilings ceilings;
  ceilings.copy = 2.0 * kBytes / Stopwatch().Time(stream, [&] {
    RECURVE_CUDA_OK(
        cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream));
  });
  ceilings.read = 1.0 * kBytes / Stopwatch().Time(stream, [&] {
    ReadAll<<<528, 512, 0, stream>>>(static_cast<uint4*>(from), kBytes / 16,
                                     static_cast<uint32_t*>(to));
  });
  ceilings.empty_graph_us = TimeGraph(
      [](cudaStream_t s, int) {
        Nothing<<<1, 32, 0, s>>>();
        return cudaGetLastError();
      },
      1, stream);
  RECURVE_CUDA_OK(cudaStreamDestroy(stream));
  RECURVE_CUDA_OK(cudaFree(from));
  RECURVE_CUDA_OK(cudaFree(to));
  return ceilings;
}

void Print(const Ceilings& c, const std::vector<Result>& results) {
  std::printf("copy %.0f GB/s, read %.0f GB/s, empty graph %.2f us\n",
              c.copy / 1e3, c.read / 1e3, c.empty_graph_us);
  std::printf("%-26s %-34s %9s %9s %9s %9s %9s %8s %6s\n", "op", "shape",
              "graph us", "launch us", "chain us", "cold us", "floor us",
              "of copy", "MHz");
  for (const Result& r : results) {
    const double floor = r.bytes / c.copy;
    std::printf("%-26s %-34s %9.2f %9.2f %9.2f %9.2f %9.2f %7.1f%% %6.0f",
                r.op.c_str(), r.shape.c_str(), r.timing.graph_us,
                r.timing.launch_us, r.timing.chain_us, r.timing.cold_us, floor,
                100.0 * floor / r.timing.graph_us, r.timing.clock_mhz);
    if (r.flops > 0.0) {
      std::printf(" %6.1f TF/s", 1e-6 * r.flops / r.timing.graph_us);
    }
    std::printf("\n");
  }
}

void WriteJson(const std::string& path, const std::string& commit,
               const Ceilings& c, const std::vector<Result>& results) {
  std::FILE* out = std::fopen(path.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(1);
  }
  cudaDeviceProp device;
  RECURVE_CUDA_OK(cudaGetDeviceProperties(&device, 0));
  int driver = 0;
  RECURVE_CUDA_OK(cudaDriverGetVersion(&driver));
  std::fprintf(out,
               "{\n  \"gpu\": \"%s\",\n  \"cuda_driver\": %d,\n"
               "  \"commit\": \"%s\",\n"
               "  \"copy_gb_per_s\": %.0f,\n  \"read_gb_per_s\": %.0f,\n"
               "  \"empty_graph_us\": %.2f,\n  \"results\": [",
               device.name, driver, commit.c_str(), c.copy / 1e3, c.read / 1e3,
               c.empty_graph_us);
  const char* separator = "";
  for (const Result& r : results) {
    std::fprintf(out,
                 "%s\n    {\"op\": \"%s\", \"shape\": \"%s\", "
                 "\"graph_us\": %.2f, \"launch_us\": %.2f, "
                 "\"chain_us\": %.2f, \"cold_us\": %.2f, \"bytes\": %.0f, "
                 "\"floor_us\": %.2f, "
                 "\"of_floor\": %.3f, \"clock_mhz\": %.0f",
                 separator, r.op.c_str(), r.shape.c_str(), r.timing.graph_us,
                 r.timing.launch_us, r.timing.chain_us, r.timing.cold_us,
                 r.bytes, r.bytes / c.copy,
                 r.bytes / c.copy / r.timing.graph_us, r.timing.clock_mhz);
    if (r.flops > 0.0) {
      std::fprintf(out, ", \"tflop_per_s\": %.1f",
                   1e-6 * r.flops / r.timing.graph_us);
    }
    std::fprintf(out, "}");
    separator = ",";
  }
  std::fprintf(out, "\n  ]\n}\n");
  if (!CloseWritten(out)) {
    std::fprintf(stderr, "cannot write all of %s\n", path.c_str());
    std::exit(1);
  }
}

}  // namespace bench
}  // namespace recurve
