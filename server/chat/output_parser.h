#ifndef RECURVE_SERVER_CHAT_OUTPUT_PARSER_H_
#define RECURVE_SERVER_CHAT_OUTPUT_PARSER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/chat/tool_calls.h"

namespace recurve {

// What a part of a model's output comes to.
struct OutputPart {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;

  bool empty() const {
    return reasoning.empty() && content.empty() && tool_calls.empty();
  }
};

// Splits a chat model's output, as it comes, into reasoning (what stands in
// <think>…</think>), content and tool calls. However the output is cut into
// pieces, the parts concatenate to the same. Text that may begin a mark is
// held back until the next piece tells. Line breaks next to a mark belong to
// neither side. A tool call is given once it is whole; one that is never
// closed, or cannot be read, is content as it stands.
//
// Thread safety: one thread at a time.
class OutputParser {
 public:
  struct Options {
    bool splits_reasoning = false;
    bool begins_reasoning = false;  // the prompt has opened <think>
    bool reads_tools = false;
    bool one_call = false;  // what follows the first call is dropped
    ToolSchemas schemas;
  };

  explicit OutputParser(Options options);

  OutputPart Append(absl::string_view text);
  // No more follows.
  OutputPart Finish();

  bool found_calls() const { return found_calls_; }

 private:
  enum class State { kStart, kReasoning, kContent, kCall };

  // Takes what it can from held_; false: it needs more.
  bool Step(bool last, OutputPart* part);
  bool StepStart(bool last);
  bool StepReasoning(bool last, OutputPart* part);
  bool StepContent(bool last, OutputPart* part);
  bool StepCall(bool last, OutputPart* part);
  // Moves text before a mark to `to`, and skips the mark. Without a mark, moves
  // what certainly is not part of one. False: there is no mark.
  bool TakeUntil(absl::string_view mark, bool last, std::string* to);
  void AddContent(absl::string_view text, OutputPart* part);

  const Options options_;
  State state_;
  std::string held_;
  bool skip_newlines_ = false;  // behind a mark
  bool found_calls_ = false;
  size_t searched_ = 0;  // of held_, in kCall
};

}  // namespace recurve

#endif  // RECURVE_SERVER_CHAT_OUTPUT_PARSER_H_
