// Measures the kernels on a GPU: `recurve-kernel-bench`. An operation is one
// file and one row of kOperations.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "bench/cuda/attention_bench.h"
#include "bench/cuda/gated_delta_bench.h"
#include "bench/cuda/linear_bench.h"
#include "bench/cuda/linear_noncausal_bench.h"
#include "bench/cuda/linear_prefill_bench.h"
#include "bench/cuda/matmul_bench.h"
#include "bench/cuda/sampling_bench.h"
#include "bench/cuda/small_ops_bench.h"
#include "bench/cuda/tpa_bench.h"
#include "bench/cuda/tpa_prefill_bench.h"

namespace {

using recurve::bench::BenchOptions;
using recurve::bench::Result;

struct Operation {
  const char* name;
  std::vector<Result> (*bench)(const BenchOptions& options);
};
constexpr Operation kOperations[] = {
    {"attention", recurve::bench::BenchAttention},
    {"tpa", recurve::bench::BenchTpa},
    {"gated_delta", recurve::bench::BenchGatedDelta},
    {"linear", recurve::bench::BenchLinear},
    {"linear_noncausal", recurve::bench::BenchLinearNoncausal},
    {"linear_prefill", recurve::bench::BenchLinearPrefill},
    {"lrpe", recurve::bench::BenchLrpe},
    {"matmul", recurve::bench::BenchMatmul},
    {"norm", recurve::bench::BenchNorm},
    {"sampling", recurve::bench::BenchSampling},
    {"tpa_prefill", recurve::bench::BenchTpaPrefill},
};

constexpr char kUsage[] =
    "usage: recurve-kernel-bench [--json FILE] [--commit ID] [--quick]\n"
    "                            [--only attention|gated_delta|tpa|linear|\n"
    "                                    "
    "linear_noncausal|linear_prefill|lrpe|matmul|\n"
    "                                    "
    "norm|sampling|tpa_prefill]\n"
    "                            [--shape PART_OF_A_NAME]\n";

bool IsOperation(const std::string& name) {
  for (const Operation& operation : kOperations) {
    if (name == operation.name) return true;
  }
  return false;
}

int Usage() {
  std::fputs(kUsage, stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace recurve::bench;
  std::string json;
  std::string commit = "unknown";
  std::string only;
  BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--commit") == 0 && i + 1 < argc) {
      commit = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
      if (!IsOperation(only)) return Usage();
    } else if (std::strcmp(argv[i], "--shape") == 0 && i + 1 < argc) {
      options.shape = argv[++i];
    } else {
      return Usage();
    }
  }
  const std::string why = json.empty() ? "" : recurve::WhyNotWritable(json);
  if (!why.empty()) {
    std::fprintf(stderr, "cannot write %s: %s\n", json.c_str(), why.c_str());
    return 1;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("no CUDA device on this machine\n", stderr);
    return 1;
  }
  const Ceilings ceilings = MeasureCeilings();
  std::vector<Result> results;
  for (const Operation& operation : kOperations) {
    if (!only.empty() && only != operation.name) continue;
    const std::vector<Result> more = operation.bench(options);
    results.insert(results.end(), more.begin(), more.end());
  }
  if (results.empty()) {
    std::fprintf(stderr, "no shape has '%s' in its name\n",
                 options.shape.c_str());
    return 1;
  }
  Print(ceilings, results);
  if (!json.empty()) WriteJson(json, commit, ceilings, results);
  return 0;
}
