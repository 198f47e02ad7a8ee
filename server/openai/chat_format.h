#ifndef RECURVE_SERVER_OPENAI_CHAT_FORMAT_H_
#define RECURVE_SERVER_OPENAI_CHAT_FORMAT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/chat/template_renderer.h"
#include "server/openai/api_format.h"
#include "server/openai/chat_request.h"

namespace recurve {

// How chat is served; null where it is not.
struct ChatOptions {
  // Outlives the calls. Null: there is no chat, because of `problem`.
  TemplateRenderer* renderer = nullptr;
  std::string problem = "the checkpoint has no chat template";
  // The tokens of a request that names no number; 0: as many as the model has
  // room for.
  int64_t default_max_tokens = 0;
};

// POST /v1/chat/completions. The messages become a prompt by the template of
// the checkpoint; the output becomes reasoning, content and tool calls
// (server/chat/output_parser.h).
//
// That a call is made (tool_choice) is ensured by the prompt, which begins it;
// what follows is the model's.
class ChatFormat : public ApiFormat {
 public:
  // `options` outlives it and has a renderer.
  explicit ChatFormat(const ChatOptions& options) : options_(options) {}

  std::optional<ApiError> Parse(const std::string& body,
                                const std::string& model_name,
                                const RequestLimits& limits,
                                CompletionRequest* request) override;
  int64_t PrepareBytes(const CompletionRequest& request) const override;
  std::optional<ApiError> Prepare(const RequestContext& context,
                                  CompletionRequest* request) override;
  int64_t DefaultMaxTokens(const RequestContext& context,
                           const CompletionRequest& request) const override;
  FieldNames Names(size_t index, size_t count) const override;
  std::unique_ptr<ChoiceWriter> NewWriter(const CompletionRequest& request,
                                          const Tokenizer* tokenizer,
                                          int choice) const override;
  bool has_one_prompt() const override { return true; }
  absl::string_view id_prefix() const override { return "chatcmpl-"; }
  absl::string_view object(bool event) const override {
    return event ? "chat.completion.chunk" : "chat.completion";
  }

 private:
  // The beginning of a call that the request wants; empty: none.
  std::string ForcedCall() const;

  const ChatOptions& options_;
  ChatRequest chat_;
  // Set by Prepare.
  std::string forced_;  // the end of the prompt that belongs to the output
  bool begins_reasoning_ = false;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_CHAT_FORMAT_H_
