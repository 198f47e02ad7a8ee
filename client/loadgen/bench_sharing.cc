#include "client/loadgen/bench_sharing.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/loadgen/bench_flag_errors.h"
#include "client/loadgen/bench_tree.h"

namespace recurve {
namespace {

constexpr uint32_t kMostTurns = 1000;
constexpr uint64_t kMostTreeRequests = 100000;
constexpr uint32_t kDefaultPrefixGroups = 8;
constexpr char kDefaultPrefixTokens[] = "256";
constexpr uint32_t kDefaultBranches = 2;
constexpr uint32_t kDefaultBranchLevels = 2;

// The turns of a conversation, or of each branch of a tree.
const char* DefaultTurns(absl::string_view workload) {
  if (workload == "conversations") return "4";
  return workload == "agents" ? "2" : "1";
}

// Checks that each flag given belongs to the workload.
absl::Status CheckSharingFlags(const BenchFlags& flags,
                               absl::string_view name) {
  const bool agents = name == "agents";
  const bool prefixes = name == "prefixes";
  if (!flags.trace_path.empty() && name != "random") {
    return RefuseFlag(
        flags.workload.empty() ? "--turns" : "--workload",
        absl::StrCat(flags.workload, flags.workload.empty() ? "" : " ",
                     "not together with --trace, which has the "
                     "lengths"));
  }
  if (!flags.turns.empty() && name == "random") {
    return RefuseFlag("--turns", absl::StrCat(flags.turns,
                                              " not together with --workload "
                                              "random"));
  }
  const bool has_turns =
      !flags.turns.empty() || agents || name == "conversations";
  constexpr char kNeedsTurns[] =
      "needs --turns, --workload conversations or --workload agents";
  if (!flags.turn_tokens.empty() && !has_turns) {
    return RefuseFlag("--turn-tokens", kNeedsTurns);
  }
  if (flags.think_time_seconds.has_value() && !has_turns) {
    return RefuseFlag("--think-time", kNeedsTurns);
  }
  if (flags.prefix_groups.has_value() && !prefixes) {
    return RefuseFlag("--prefix-groups", "needs --workload prefixes");
  }
  if (!flags.prefix_tokens.empty() && !prefixes && !agents) {
    return RefuseFlag("--prefix-tokens",
                      "needs --workload prefixes or --workload agents");
  }
  if (flags.snapshot_prefix && !prefixes && !agents) {
    return RefuseFlag("--snapshot-prefix",
                      "needs --workload prefixes or --workload agents");
  }
  if (flags.branches.has_value() && !agents) {
    return RefuseFlag("--branches", "needs --workload agents");
  }
  if (flags.branch_levels.has_value() && !agents) {
    return RefuseFlag("--branch-levels", "needs --workload agents");
  }
  return absl::OkStatus();
}

absl::Status SetTurns(const BenchFlags& flags, absl::string_view name,
                      WorkloadConfig* workload) {
  RECURVE_ASSIGN_OR_RETURN(
      workload->turns,
      ParseLengthsFlag("--turns",
                       flags.turns.empty() ? DefaultTurns(name) : flags.turns));
  if (workload->turns.max() > kMostTurns) {
    return RefuseFlag("--turns", absl::StrCat(workload->turns.max(),
                                              " is above ", kMostTurns));
  }
  workload->turn_tokens = workload->prompt_tokens;
  if (!flags.turn_tokens.empty()) {
    RECURVE_ASSIGN_OR_RETURN(
        workload->turn_tokens,
        ParseLengthsFlag("--turn-tokens", flags.turn_tokens));
  }
  return absl::OkStatus();
}

absl::Status SetPrefixes(const BenchFlags& flags, absl::string_view name,
                         WorkloadConfig* workload) {
  if (name != "prefixes" && name != "agents") return absl::OkStatus();
  workload->prefix_groups =
      name == "agents" ? 1 : flags.prefix_groups.value_or(kDefaultPrefixGroups);
  RECURVE_ASSIGN_OR_RETURN(
      workload->prefix_tokens,
      ParseLengthsFlag("--prefix-tokens", flags.prefix_tokens.empty()
                                              ? kDefaultPrefixTokens
                                              : flags.prefix_tokens));
  workload->snapshot_prefix = flags.snapshot_prefix;
  return absl::OkStatus();
}

absl::Status SetBranches(const BenchFlags& flags, absl::string_view name,
                         WorkloadConfig* workload) {
  if (name != "agents") return absl::OkStatus();
  workload->branches = flags.branches.value_or(kDefaultBranches);
  workload->branch_levels = flags.branch_levels.value_or(kDefaultBranchLevels);
  const uint64_t requests = RequestTree::CountRequests(
      workload->turns.max(), workload->branches, workload->branch_levels);
  if (requests > kMostTreeRequests) {
    return RefuseFlag(
        "--branches, --branch-levels and --turns",
        absl::StrCat("a tree of ", workload->branches, " branches at each of ",
                     workload->branch_levels, " levels with ",
                     workload->turns.max(), " turns has more than ",
                     kMostTreeRequests, " requests"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string WorkloadName(const BenchFlags& flags) {
  if (!flags.workload.empty()) return flags.workload;
  return flags.turns.empty() ? "random" : "conversations";
}

absl::Status SetSharing(const BenchFlags& flags, WorkloadConfig* workload) {
  const std::string name = WorkloadName(flags);
  RECURVE_RETURN_IF_ERROR(CheckSharingFlags(flags, name));
  RECURVE_RETURN_IF_ERROR(SetTurns(flags, name, workload));
  RECURVE_RETURN_IF_ERROR(SetPrefixes(flags, name, workload));
  return SetBranches(flags, name, workload);
}

}  // namespace recurve
