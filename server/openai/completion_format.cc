#include "server/openai/completion_format.h"

#include <utility>
#include <variant>
#include <vector>

namespace recurve {
namespace {

class CompletionWriter : public ChoiceWriter {
 public:
  CompletionWriter(const CompletionRequest& request, const Tokenizer* tokenizer,
                   int choice)
      : request_(request),
        tokenizer_(tokenizer),
        with_logprobs_(
            request.prompts[static_cast<size_t>(choice / request.samples)]
                .options.sampling.num_logprobs >= 0) {}

  void SetPrompt(absl::Span<const int32_t> prompt) override {
    if (!with_logprobs_) return;
    // With an echo the text begins with the prompt.
    text_offsets_ = TextOffsets(
        tokenizer_, request_.echo ? absl::Span<const int32_t>() : prompt,
        !request_.prompts[0].options.stopping.skip_special_tokens);
  }

  std::vector<nlohmann::json> TakeEvents(ChoicePiece* piece) override {
    if (!HasContent(piece)) return {};
    std::vector<nlohmann::json> events = {Whole(*piece)};
    piece->echo.reset();
    piece->prompt.clear();
    piece->tokens.Clear();
    piece->finished.reset();
    return events;
  }

  nlohmann::json Whole(const ChoicePiece& piece) override {
    return ChoiceJson(piece, request_, tokenizer_, &text_offsets_);
  }

 private:
  // Drops output that never will be sent.
  bool HasContent(ChoicePiece* piece) const {
    if (!piece->tokens.text().empty() || piece->finished) return true;
    if (request_.echo && !piece->prompt.empty()) return true;
    if (piece->tokens.ids_size() == 0) return false;
    if (with_logprobs_ || request_.continuous_usage ||
        request_.ShowsTokenIds(tokenizer_)) {
      return true;
    }
    // Its text is held back, because it may begin a stop string, or there is
    // none. Keeping ids would eventually pause the sequence.
    piece->tokens.clear_ids();
    return false;
  }

  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  const bool with_logprobs_;
  TextOffsets text_offsets_;
};

}  // namespace

std::optional<ApiError> CompletionFormat::Parse(const std::string& body,
                                                const std::string& model_name,
                                                const RequestLimits& limits,
                                                CompletionRequest* request) {
  return ParseCompletion(body, model_name, limits, request);
}

int64_t CompletionFormat::PrepareBytes(const CompletionRequest& request) const {
  int64_t bytes = 0;
  for (const RequestInput& prompt : request.prompts) {
    bytes += prompt.text_bytes();
    // They are decoded for an echo.
    const auto* const ids = std::get_if<std::vector<int32_t>>(&prompt.prompt);
    if (request.echo && ids != nullptr) {
      bytes += static_cast<int64_t>(ids->size() * sizeof(int32_t));
    }
  }
  return bytes;
}

FieldNames CompletionFormat::Names(size_t index, size_t count) const {
  return CompletionFieldNames(index, count);
}

std::unique_ptr<ChoiceWriter> CompletionFormat::NewWriter(
    const CompletionRequest& request, const Tokenizer* tokenizer,
    int choice) const {
  return std::make_unique<CompletionWriter>(request, tokenizer, choice);
}

}  // namespace recurve
