#include "engine/loading/host_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace recurve {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The number after `name` in a file of lines "name number …"; nothing if there
// is none.
std::optional<int64_t> Number(const std::string& path,
                              const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() > 1 && words[0] == name &&
        absl::SimpleAtoi(words[1], &value)) {
      return value;
    }
  }
  return std::nullopt;
}

// The only number in a file; nothing if the file is missing or says "max".
std::optional<int64_t> Number(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t value = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

// File and key names of a cgroup version.
struct Version {
  const char* limit;
  const char* usage;
  // Keys of memory.stat that count reclaimable memory: file pages, which can be
  // read again, and what the system can rebuild.
  std::array<const char*, 3> cached;
};
constexpr Version kVersion1 = {
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    {"total_inactive_file", "total_active_file", "total_slab_reclaimable"}};
constexpr Version kVersion2 = {
    "memory.max",
    "memory.current",
    {"inactive_file", "active_file", "slab_reclaimable"}};

// The memory left to a cgroup and its ancestors. A container may see its own
// group as the root, whatever its path is outside.
int64_t Left(const std::string& top, std::string path, const Version& version) {
  if (absl::StrContains(path, "..")) path.clear();
  int64_t left = kMost;
  while (true) {
    const std::string folder = absl::StrCat(top, path, "/");
    const auto limit = Number(folder + version.limit);
    const auto usage = Number(folder + version.usage);
    if (limit && usage) {
      int64_t held = *usage;
      for (const char* name : version.cached) {
        held -= Number(folder + "memory.stat", name).value_or(0);
      }
      left = std::min(
          left, std::max<int64_t>(*limit - std::max<int64_t>(held, 0), 0));
    }
    if (path.empty()) return left;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

int64_t LeftByGroups(const std::string& root) {
  int64_t left = kMost;
  const std::string top = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // ID:CONTROLLERS:PATH, without controllers in version 2.
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const std::vector<absl::string_view> controllers =
        absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      left = std::min(left, Left(top, parts[2], kVersion2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") !=
               controllers.end()) {
      left = std::min(left, Left(top + "/memory", parts[2], kVersion1));
    }
  }
  return left;
}

std::string WhatThereIs(const HostMemory& memory) {
  return absl::StrCat(memory.limited
                          ? "the control group (of a container, say) leaves "
                          : "the host has ",
                      memory.available, " bytes of memory");
}

}  // namespace

std::optional<HostMemory> AvailableHostMemory(const std::string& root) {
  const std::string file = root + "/proc/meminfo";
  const auto available = Number(file, "MemAvailable:");
  if (!available) return std::nullopt;
  constexpr int64_t kKilo = 1024;
  const int64_t swap = Number(file, "SwapFree:").value_or(0) * kKilo;
  HostMemory memory;
  memory.available = *available * kKilo;
  const int64_t left = LeftByGroups(root);
  if (left < memory.available) memory = {left, /*limited=*/true};
  memory.available += swap;
  return memory;
}

absl::Status CheckHostMemory(const HostNeeds& needs, const HostMemory& memory) {
  if (needs.all() <= memory.available) return absl::OkStatus();
  const std::string option =
      needs.state + needs.sampling >= needs.cache
          ? absl::StrCat("--max-num-seqs is ", needs.num_slots)
          : needs.cache_option;
  return absl::ResourceExhaustedError(absl::StrCat(
      needs.weights > memory.available ? "" : absl::StrCat(option, "; "),
      WhatThereIs(memory), ", and the model needs ", needs.all(), ": ",
      needs.weights, " for weights, ", needs.cache, " for ", needs.num_pages,
      " pages of the KV cache, ", needs.state, " for the state of ",
      needs.num_slots, " sequences, ", needs.sampling, " for sampling and ",
      needs.activations,
      " for the activations of a step (lower --max-num-seqs, --kv-pool-bytes, "
      "--kv-pages, --max-num-batched-tokens or --num-threads)"));
}

absl::Status CheckSwapMemory(int64_t swap, int64_t others,
                             const HostMemory& memory) {
  if (swap <= memory.available - others) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("--swap-bytes is ", swap, "; ", WhatThereIs(memory),
                   ", of which the model takes ", others,
                   " (lower --swap-bytes; 0 saves none)"));
}

}  // namespace recurve
