#ifndef RECURVE_SERVER_OPENAI_API_FORMAT_H_
#define RECURVE_SERVER_OPENAI_API_FORMAT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/serving/request.h"
#include "nlohmann/json.hpp"
#include "server/openai/openai.h"
#include "server/requests/convert.h"

namespace recurve {

// Writes one choice of an answer. One thread at a time.
class ChoiceWriter {
 public:
  virtual ~ChoiceWriter() = default;
  // Called once, before any piece.
  virtual void SetPrompt(absl::Span<const int32_t> prompt) = 0;
  // The choices of the events that `piece` comes to: none, if it has nothing to
  // send. Takes what it needs of it.
  virtual std::vector<nlohmann::json> TakeEvents(ChoicePiece* piece) = 0;
  // The choice of an answer in one; `piece` has all of it.
  virtual nlohmann::json Whole(const ChoicePiece& piece) = 0;
};

// What one path that generates has of its own: how its requests are read, and
// how its answers are written. CompletionCall has the rest. One for each call.
//
// Thread safety: one thread at a time until the engine has the request; then
// constant.
class ApiFormat {
 public:
  virtual ~ApiFormat() = default;

  // Reads the body into `request`, which outlives this.
  virtual std::optional<ApiError> Parse(const std::string& body,
                                        const std::string& model_name,
                                        const RequestLimits& limits,
                                        CompletionRequest* request) = 0;
  // Bytes of text that Prepare converts; what takes long is done in its turn.
  virtual int64_t PrepareBytes(const CompletionRequest& request) const = 0;
  // Makes the prompts complete. May block for seconds.
  virtual std::optional<ApiError> Prepare(const RequestContext& context,
                                          CompletionRequest* request) = 0;
  // The tokens of a choice whose request names no number.
  virtual int64_t DefaultMaxTokens(const RequestContext& context,
                                   const CompletionRequest& request) const = 0;
  // What this API calls the fields of prompt `index` of `count`.
  virtual FieldNames Names(size_t index, size_t count) const = 0;
  // `request` and `tokenizer`, which may be null, outlive the writer.
  virtual std::unique_ptr<ChoiceWriter> NewWriter(
      const CompletionRequest& request, const Tokenizer* tokenizer,
      int choice) const = 0;

  // Whether a request has one prompt, not a list.
  virtual bool has_one_prompt() const = 0;
  virtual absl::string_view id_prefix() const = 0;
  // The member `object` of an answer, or of an event.
  virtual absl::string_view object(bool event) const = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_API_FORMAT_H_
