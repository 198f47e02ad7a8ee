#include "server/variables.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace recurve {
namespace {

constexpr absl::string_view kPrefix = "RECURVE_";

// Variables of recurve-client, of deploy/compose, and of the build, its tests
// and benchmarks. Whole names, or prefixes that end in "_".
constexpr absl::string_view kOfOthers[] = {
    "RECURVE_API_KEY",        "RECURVE_BENCH_",
    "RECURVE_BUILD_",         "RECURVE_CCACHE",
    "RECURVE_CUDA",           "RECURVE_CXX_FLAGS",
    "RECURVE_DEMO_MODEL",     "RECURVE_FUZZ_SECONDS",
    "RECURVE_GOLDEN_MODELS",  "RECURVE_HOSTILE_ROUNDS",
    "RECURVE_IMAGE",          "RECURVE_LOAD_SECONDS",
    "RECURVE_MODEL_DIR",      "RECURVE_PYTHON",
    "RECURVE_SANITIZER",      "RECURVE_SERVER",
    "RECURVE_SERVER_PROGRAM", "RECURVE_SIM_SEEDS",
    "RECURVE_TEST_",          "RECURVE_TLS",
    "RECURVE_TLS_CA",         "RECURVE_VERSION",
    "RECURVE_WERROR",
};

bool IsOfOthers(absl::string_view name) {
  return std::any_of(
      std::begin(kOfOthers), std::end(kOfOthers), [&](absl::string_view other) {
        return absl::EndsWith(other, "_") ? absl::StartsWith(name, other)
                                          : name == other;
      });
}

// Like RECURVE_SERVICE_HOST, RECURVE_SERVICE_PORT_HTTP, RECURVE_PORT and
// RECURVE_PORT_9090_TCP_ADDR.
bool IsServiceLink(absl::string_view name, absl::string_view value) {
  for (const absl::string_view scheme : {"tcp://", "udp://", "sctp://"}) {
    if (absl::StartsWith(value, scheme)) return true;
  }
  if (absl::StrContains(name, "_SERVICE_HOST") ||
      absl::StrContains(name, "_SERVICE_PORT")) {
    return true;
  }
  const absl::string_view port = "_PORT_";
  const size_t at = name.find(port);
  return at != absl::string_view::npos && at + port.size() < name.size() &&
         absl::ascii_isdigit(name[at + port.size()]);
}

// Set by Docker for a container linked as "recurve": RECURVE_NAME, and the
// container's variables with the prefix RECURVE_ENV_.
bool IsContainerLink(absl::string_view name, absl::string_view value) {
  return (absl::EndsWith(name, "_NAME") && absl::StartsWith(value, "/")) ||
         absl::StartsWith(name, "RECURVE_ENV_");
}

// Names that differ by this much are unrelated.
constexpr size_t kClose = 4;

// Number of characters to be changed, added or removed.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> UnknownVariables(const std::vector<std::string>& known,
                                          const char* const* environment) {
  std::vector<std::string> warnings;
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const size_t end = entry.find('=');
    if (end == absl::string_view::npos) continue;
    const absl::string_view name = entry.substr(0, end);
    // recurve_max_num_seqs is misspelt, too.
    const std::string upper = absl::AsciiStrToUpper(name);
    if (!absl::StartsWith(upper, kPrefix) ||
        std::find(known.begin(), known.end(), name) != known.end() ||
        IsOfOthers(name) || IsServiceLink(name, entry.substr(end + 1)) ||
        IsContainerLink(name, entry.substr(end + 1))) {
      continue;
    }
    const auto closest =
        std::min_element(known.begin(), known.end(),
                         [&](const std::string& a, const std::string& b) {
                           return Distance(upper, a) < Distance(upper, b);
                         });
    warnings.push_back(absl::StrCat(
        name, " is ignored: no flag has this variable",
        closest == known.end() || Distance(upper, *closest) > kClose
            ? ""
            : absl::StrCat("; the closest that one has is ", *closest)));
  }
  return warnings;
}

}  // namespace recurve
