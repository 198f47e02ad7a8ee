#ifndef RECURVE_CLIENT_LOADGEN_BENCH_HTML_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_HTML_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/loadgen/bench_step.h"

namespace recurve {

// The report as one self-contained HTML file: no external scripts, fonts or
// images. `report` is the JSON report of the bench (see bench_output.h),
// `steps` its source. bench_report.html draws it.
std::string MakeHtmlReport(const nlohmann::ordered_json& report,
                           const std::vector<BenchStep>& steps);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_HTML_H_
