// Measures the linear-attention step and the small ops on a GPU.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda/linear_bench.h"
#include "bench/cuda/small_ops_bench.h"

namespace {

constexpr char kUsage[] =
    "usage: recurve-linear-bench [--json FILE] [--commit ID] [--quick]\n"
    "                            [--only linear|lrpe|norm]\n";

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
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--commit") == 0 && i + 1 < argc) {
      commit = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else {
      return Usage();
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("no CUDA device on this machine\n", stderr);
    return 1;
  }
  const Ceilings ceilings = MeasureCeilings();
  std::vector<Result> results;
  const auto append = [&](const char* name, auto&& bench) {
    if (!only.empty() && only != name) return;
    const std::vector<Result> more = bench();
    results.insert(results.end(), more.begin(), more.end());
  };
  append("linear", [quick] { return BenchLinear(quick); });
  append("lrpe", BenchLrpe);
  append("norm", BenchNorm);
  Print(ceilings, results);
  if (!json.empty()) WriteJson(json, commit, ceilings, results);
  return 0;
}
