#ifndef RECURVE_SERVER_SERVER_MAIN_H_
#define RECURVE_SERVER_SERVER_MAIN_H_

#include <functional>
#include <memory>

#include "engine/program/model_runner.h"

namespace recurve {

// Decorates the model before it serves: tests inject faults.
using WrapRunner =
    std::function<std::unique_ptr<ModelRunner>(std::unique_ptr<ModelRunner>)>;

// The server program: reads flags, loads, serves until it is drained or the
// device fails. Returns the exit status of the process.
int ServerMain(int argc, char** argv, const WrapRunner& wrap = nullptr);

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVER_MAIN_H_
