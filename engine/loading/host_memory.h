#ifndef RECURVE_ENGINE_LOADING_HOST_MEMORY_H_
#define RECURVE_ENGINE_LOADING_HOST_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace recurve {

// What this process may still take of the machine's memory, in bytes.
struct HostMemory {
  int64_t available = 0;
  // Whether a control group, as of a container, allows no more; else the
  // machine has no more.
  bool limited = false;
};

// As the kernel tells: memory that is free or easily freed, files in its cache
// included, and swap; less, where one of the process's control groups (of
// version 1 or 2) leaves less. At least as much as can be had. Nothing where
// the kernel does not tell. `root`: the folder that has proc and sys.
std::optional<HostMemory> AvailableHostMemory(const std::string& root = "");

// Bytes that a model on the CPU surely takes, and what they follow from.
struct HostNeeds {
  int64_t weights = 0;
  int64_t cache = 0;  // of the factor cache
  int64_t state = 0;  // of all sequences
  int64_t sampling = 0;
  int64_t num_pages = 0;
  int64_t num_slots = 0;
  // The option that the cache's size comes from, as it is called and its value.
  std::string cache_option;

  int64_t all() const { return weights + cache + state + sampling; }
};

// ResourceExhausted if that does not fit: names the option that takes the most,
// its value, what is needed and what is available.
absl::Status CheckHostMemory(const HostNeeds& needs, const HostMemory& memory);
// The same of what sequences are saved in, beside `others`.
absl::Status CheckSwapMemory(int64_t swap, int64_t others,
                             const HostMemory& memory);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_HOST_MEMORY_H_
