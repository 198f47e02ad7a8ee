#ifndef RECURVE_SERVER_OPENAI_COMPLETION_FORMAT_H_
#define RECURVE_SERVER_OPENAI_COMPLETION_FORMAT_H_

#include <memory>
#include <optional>
#include <string>

#include "server/openai/api_format.h"

namespace recurve {

// POST /v1/completions.
class CompletionFormat : public ApiFormat {
 public:
  std::optional<ApiError> Parse(const std::string& body,
                                const std::string& model_name,
                                const RequestLimits& limits,
                                CompletionRequest* request) override;
  int64_t PrepareBytes(const CompletionRequest& request) const override;
  // Texts are encoded later, by Complete (convert.h).
  std::optional<ApiError> Prepare(const RequestContext&,
                                  CompletionRequest*) override {
    return std::nullopt;
  }
  int64_t DefaultMaxTokens(const RequestContext&,
                           const CompletionRequest&) const override {
    return kCompletionMaxTokens;
  }
  FieldNames Names(size_t index, size_t count) const override;
  std::unique_ptr<ChoiceWriter> NewWriter(const CompletionRequest& request,
                                          const Tokenizer* tokenizer,
                                          int choice) const override;
  bool has_one_prompt() const override { return false; }
  absl::string_view id_prefix() const override { return "cmpl-"; }
  absl::string_view object(bool) const override { return "text_completion"; }
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_COMPLETION_FORMAT_H_
