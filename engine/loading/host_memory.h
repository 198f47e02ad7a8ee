#ifndef RECURVE_ENGINE_LOADING_HOST_MEMORY_H_
#define RECURVE_ENGINE_LOADING_HOST_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace recurve {

// Memory of the machine still available to this process, in bytes.
struct HostMemory {
  int64_t available = 0;
  // Whether a cgroup, e.g. a container's, sets the limit; else the machine
  // does.
  bool limited = false;
};

// The kernel's figures: memory that is free or easily freed, page cache
// included, plus swap; less if one of the process's cgroups (version 1 or 2)
// allows less. An upper bound. Nothing if the kernel does not tell. `root`: the
// folder that contains proc and sys.
std::optional<HostMemory> AvailableHostMemory(const std::string& root = "");

// Bytes that a model on the CPU needs at least, and their causes.
struct HostNeeds {
  int64_t weights = 0;
  int64_t cache = 0;  // the KV cache
  int64_t state = 0;  // for all sequences
  int64_t sampling = 0;
  int64_t num_pages = 0;
  int64_t num_slots = 0;
  int64_t activations = 0;  // of the largest step
  // The option that determines the cache's size, with its value.
  std::string cache_option;

  int64_t all() const {
    return weights + cache + state + sampling + activations;
  }
};

// ResourceExhausted if the needs exceed the memory: names the option that takes
// the most, its value, the need and the memory available.
absl::Status CheckHostMemory(const HostNeeds& needs, const HostMemory& memory);
// As CheckHostMemory, for `swap` bytes to save sequences in, in addition to
// `others`.
absl::Status CheckSwapMemory(int64_t swap, int64_t others,
                             const HostMemory& memory);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_HOST_MEMORY_H_
