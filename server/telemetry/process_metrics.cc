#include "server/telemetry/process_metrics.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"
#include "server/telemetry/process_log.h"

namespace recurve {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

// Fields of /proc/self/stat, see proc(5).
struct Stat {
  double cpu_ticks = 0;    // fields 14 and 15
  double start_ticks = 0;  // field 22, since the machine started
  double pages = 0;        // field 24, resident
};

std::optional<Stat> ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)),
                   std::istreambuf_iterator<char>());
  // The second field is the program's name in parentheses, which may contain
  // any characters.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end + 1));
  std::string state;
  if (!(fields >> state)) return std::nullopt;
  Stat stat;
  double value = 0;
  for (int number = 4; fields >> value; ++number) {
    if (number == 14 || number == 15) stat.cpu_ticks += value;
    if (number == 22) stat.start_ticks = value;
    if (number == 24) {
      stat.pages = value;
      return stat;
    }
  }
  return std::nullopt;
}

// The machine's boot time, in seconds since 1970.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string key;
  double value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (fields >> key >> value && key == "btime") return value;
  }
  return std::nullopt;
}

std::optional<double> OpenFiles() {
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  // The directory itself is open while it is read.
  double count = -1;
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    ++count;
  }
  if (error || count < 0) return std::nullopt;
  return count;
}

MetricFamily Family(const char* name, const char* help, MetricType type,
                    double value) {
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace

int64_t ResidentBytes() {
  const std::optional<Stat> stat = ReadStat();
  return stat ? static_cast<int64_t>(stat->pages) * sysconf(_SC_PAGESIZE) : 0;
}

std::vector<MetricFamily> CollectProcessMetrics() {
  std::vector<MetricFamily> families;
  const auto add = [&](const char* name, const char* help, MetricType type,
                       std::optional<double> value) {
    if (value) families.push_back(Family(name, help, type, *value));
  };
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const std::optional<Stat> stat = ReadStat()) {
    // Read once: when the clock is set, the boot time changes, which would look
    // like a restart.
    static const std::optional<double> boot = BootTime();
    if (boot) {
      add("process_start_time_seconds",
          "Start of the process, in seconds since 1970.", MetricType::Gauge,
          *boot + stat->start_ticks * tick);
    }
    add("process_cpu_seconds_total",
        "CPU time of the process, user and system, in seconds.",
        MetricType::Counter, stat->cpu_ticks * tick);
    add("process_resident_memory_bytes", "Memory of the process, in bytes.",
        MetricType::Gauge, static_cast<double>(ResidentBytes()));
  }
  add("process_open_fds", "Open files and connections of the process.",
      MetricType::Gauge, OpenFiles());
  add("recurve_log_lines_dropped_total",
      "Lines of the log that could not be written, or not as fast as they "
      "came.",
      MetricType::Counter, static_cast<double>(DroppedLogLines()));
  return families;
}

}  // namespace recurve
