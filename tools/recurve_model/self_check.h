#ifndef RECURVE_TOOLS_RECURVE_MODEL_SELF_CHECK_H_
#define RECURVE_TOOLS_RECURVE_MODEL_SELF_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/models/registry.h"
#include "engine/program/model_runner.h"

namespace recurve {

// Called after each stage that passed, with its name and findings.
using CheckReport =
    std::function<void(absl::string_view stage, absl::string_view found)>;

// Whether a checkpoint can be served: opens the folder, checks every tensor
// (name, shape, type, finite values), loads it on the CPU and runs
// CheckChunking on a prompt longer than a page. Returns the first error.
absl::Status CheckCheckpoint(const std::string& dir,
                             const FamilyOptions& family,
                             const std::string& tokenizer,
                             const CheckReport& report);

// Runs a prompt of `length` tokens in one chunk and token by token, and
// compares the logits of every position bit for bit. They must be finite. For a
// model that processes prompts as a whole, the first half is the prompt, and
// only the second half is split. Internal names position, token and both values
// where they differ.
//
// Uses pages 1 to 2·PagesFor(length) and slots 1 and 2, which must be clear.
absl::Status CheckChunking(ModelRunner& runner, int64_t length);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_SELF_CHECK_H_
