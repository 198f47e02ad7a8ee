#include "bench/measure.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "engine/cuda/cuda_memory.h"

namespace recurve {
namespace {

// The median time of `run`, after one that is not measured. It returns a
// status.
template <typename Run>
absl::StatusOr<double> MedianMs(int repeats, const Run& run) {
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    RECURVE_RETURN_IF_ERROR(run());
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - begin;
    if (i > 0) times.push_back(took.count());
  }
  return Median(std::move(times));
}

// Numbers from 1: those of the first `count` pages or blocks.
std::vector<int32_t> FirstNumbers(int64_t count) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double MeanOfMedians(const std::vector<std::vector<double>>& all) {
  double sum = 0;
  int count = 0;
  for (const std::vector<double>& values : all) {
    if (values.empty()) continue;
    sum += Median(values);
    ++count;
  }
  return sum / count;
}

double CopyBytesPerSecond() {
  constexpr size_t kBytes = size_t{2} << 30;
  char* data = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&data), 2 * kBytes) != cudaSuccess)
    return 0;
  cudaMemset(data, 1, 2 * kBytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    cudaEventRecord(begin);
    cudaMemcpyAsync(data + kBytes, data, kBytes, cudaMemcpyDeviceToDevice);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(ms * 1e-3);
  }
  cudaFree(data);
  return 2.0 * kBytes / Median(times);
}

absl::StatusOr<SavedTimes> MeasureSaved(CacheStorage& storage,
                                        const CacheSpec& spec, int64_t tokens,
                                        int repeats) {
  const std::vector<int32_t> pages = FirstNumbers(PagesFor(tokens, spec));
  const std::vector<int32_t> blocks = FirstNumbers(HostBlocksFor(tokens, spec));
  const SavedMemory memory = {1, pages, blocks};
  SavedTimes times;
  times.bytes =
      static_cast<int64_t>(pages.size()) * spec.page_bytes + spec.slot_bytes;
  RECURVE_ASSIGN_OR_RETURN(times.save_ms,
                           MedianMs(repeats, [&]() -> absl::Status {
                             RECURVE_RETURN_IF_ERROR(storage.Save(memory));
                             return storage.FinishCopies();
                           }));
  RECURVE_ASSIGN_OR_RETURN(times.restore_ms,
                           MedianMs(repeats, [&]() -> absl::Status {
                             RECURVE_RETURN_IF_ERROR(storage.Restore(memory));
                             return storage.FinishCopies();
                           }));
  RECURVE_ASSIGN_OR_RETURN(
      const CudaMemory host,
      CudaMemory::Allocate(CudaMemory::Kind::kHost, times.bytes, "a copy"));
  RECURVE_ASSIGN_OR_RETURN(
      const CudaMemory device,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, times.bytes, "a copy"));
  RECURVE_ASSIGN_OR_RETURN(
      times.copy_ms, MedianMs(repeats, [&] {
        return CudaStatus(cudaMemcpy(device.data(), host.data(), times.bytes,
                                     cudaMemcpyHostToDevice),
                          "a copy to the device");
      }));
  return times;
}

}  // namespace recurve
