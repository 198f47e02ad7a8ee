#ifndef RECURVE_SERVER_CHAT_TOOL_CALLS_H_
#define RECURVE_SERVER_CHAT_TOOL_CALLS_H_

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// A call of a function that the model's output has.
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// The functions of a request: for each name its parameters, and of each the
// `type` of its JSON schema; empty if it has none that is one string.
using ToolSchemas =
    std::map<std::string, std::map<std::string, std::string>, std::less<>>;

// Reads what stands between <tool_call> and </tool_call>, in the Hermes form
//   {"name": NAME, "arguments": {…}}
// or in Qwen's
//   <function=NAME> <parameter=KEY> VALUE </parameter> … </function>
// whose values are text: of a parameter whose type is not string, and of which
// it is valid JSON, it is that value. Nothing if it is neither.
std::optional<ToolCall> ParseToolCall(absl::string_view text,
                                      const ToolSchemas& schemas);

}  // namespace recurve

#endif  // RECURVE_SERVER_CHAT_TOOL_CALLS_H_
