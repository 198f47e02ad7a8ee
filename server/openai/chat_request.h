#ifndef RECURVE_SERVER_OPENAI_CHAT_REQUEST_H_
#define RECURVE_SERVER_OPENAI_CHAT_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/serving/request.h"
#include "server/chat/tool_calls.h"
#include "server/openai/openai.h"

namespace recurve {

// What the JSON of a chat completion has, beyond its options.
struct ChatRequest {
  // The body as it came: templates show objects in the order of their keys.
  std::string body;

  enum class ToolChoice { kNone, kAuto, kRequired, kNamed };
  ToolChoice tool_choice = ToolChoice::kAuto;  // kNone without tools
  std::string tool;                            // for kNamed
  ToolSchemas schemas;                         // of the tools
  bool parallel_tool_calls = true;

  bool generation_prompt = true;
  bool continue_final = false;
  bool include_reasoning = true;
  std::string variables = "{}";  // of the template, as JSON
  // Messages, and parts of their content or -1, after which the prefix cache is
  // asked to take a snapshot: the last kMaxNamedSnapshots that are marked.
  std::vector<std::pair<int, int>> breaks;

  bool has_tools() const { return tool_choice != ToolChoice::kNone; }
};

// Reads the body of a request. `chat` gets the messages, `request` one prompt,
// which has options but no text yet. An error names the field, its value and
// what is expected.
std::optional<ApiError> ParseChat(const std::string& body,
                                  const std::string& model_name,
                                  const RequestLimits& limits,
                                  ChatRequest* chat,
                                  CompletionRequest* request);

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_CHAT_REQUEST_H_
