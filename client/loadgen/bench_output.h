#ifndef RECURVE_CLIENT_LOADGEN_BENCH_OUTPUT_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_OUTPUT_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_step.h"
#include "recurve/v1/control.pb.h"

namespace recurve {

// A bench as one JSON object: the report of its run, or, for a sweep, `sweep`
// ("rate" or "concurrency"), `max_sustained_rate` and the reports of its
// `steps`, each with its `first_index`; then date, backend, model_id, config,
// model and server.
nlohmann::ordered_json MakeBenchJson(const BenchFlags& flags,
                                     const BenchPlan& plan,
                                     const v1::ModelInfo& model,
                                     const v1::ServerInfo& server,
                                     const std::vector<BenchStep>& steps);

// Whether the files that the flags name can be written: checked before the
// load, not after an hour of it. Creates no files. An error names the flag and
// the file.
absl::Status CheckBenchFiles(const BenchFlags& flags);
// Whether a report goes to a pipe or device, whose reader can block the writer.
bool WritesToPipe(const BenchFlags& flags);

// Writes the files that the flags name, then prints the table. Continues after
// an error; returns the first one, which names the file.
absl::Status WriteBench(const BenchFlags& flags, const BenchPlan& plan,
                        const v1::ModelInfo& model,
                        const v1::ServerInfo& server,
                        const std::vector<BenchStep>& steps);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_OUTPUT_H_
