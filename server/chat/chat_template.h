#ifndef RECURVE_SERVER_CHAT_CHAT_TEMPLATE_H_
#define RECURVE_SERVER_CHAT_CHAT_TEMPLATE_H_

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace recurve {

// How a model calls functions in its output, told from its template.
enum class ToolForm {
  kNone,    // its tools, if any, are left in the text
  kHermes,  // <tool_call>{"name": …, "arguments": {…}}</tool_call>
  kXml,     // <tool_call><function=…><parameter=…>…</parameter>… (Qwen)
};

// The chat template of a checkpoint: Jinja, which render_chat.py renders.
struct ChatTemplate {
  std::map<std::string, std::string> sources;  // "default", maybe "tool_use"
  std::string file;                            // path
  // Special tokens by their names, as templates have them: bos_token, ….
  std::map<std::string, std::string> tokens;

  bool takes_tools = false;  // whether it mentions tools at all
  ToolForm tool_form = ToolForm::kNone;
  bool thinks = false;  // its model writes <think>…</think>
};

// The template in a checkpoint's folder: chat_template.jinja, or that of
// chat_template.json or of tokenizer_config.json, the first that there is; or
// the file `path`, if it is not empty. Nothing if there is none.
// InvalidArgument names the file and key that cannot be read.
absl::StatusOr<std::optional<ChatTemplate>> ReadChatTemplate(
    const std::string& folder, const std::string& path);

}  // namespace recurve

#endif  // RECURVE_SERVER_CHAT_CHAT_TEMPLATE_H_
