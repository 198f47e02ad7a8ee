// Input: the body of a POST /v1/completions. What the reader accepts goes on as
// far as the engine, and what it says is put into an answer.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "engine/serving/request.h"
#include "engine/tokenizer/bytes_tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/openai/openai.h"
#include "server/requests/convert.h"

namespace recurve {
namespace {

constexpr int64_t kVocabSize = 259;
constexpr int64_t kMaxModelLen = 512;

void CheckError(const ApiError& error) {
  RECURVE_CHECK(error.status >= 400 && error.status < 500);
  RECURVE_CHECK(!error.message.empty());
  const HttpResponse response = ErrorResponse(error);
  RECURVE_CHECK(nlohmann::json::accept(response.body));
}

// A piece of an answer that repeats the prompt, whatever bytes it has.
void Answer(const CompletionRequest& request, int index, const Command& command,
            const Tokenizer* tokenizer) {
  ChoicePiece piece;
  piece.index = index;
  const RequestInput& prompt = request.prompts[static_cast<size_t>(index)];
  if (const auto* const text = std::get_if<std::string>(&prompt.prompt)) {
    piece.tokens.set_text(*text);
  }
  for (const int32_t id : command.append) {
    piece.tokens.add_ids(static_cast<uint32_t>(id));
    if (prompt.options.sampling.num_logprobs < 0) continue;
    v1::TokenLogprob& logprobs = *piece.tokens.add_logprobs();
    logprobs.set_logprob(-1);
  }
  TextOffsets text_offsets(tokenizer, {});
  RECURVE_CHECK(nlohmann::json::accept(
      ToText(ChoiceJson(piece, request, tokenizer, &text_offsets))));
}

void Read(absl::string_view body, const Tokenizer* tokenizer) {
  CompletionRequest request;
  const RequestLimits limits{kVocabSize, kMaxModelLen, tokenizer != nullptr};
  if (const auto error = ParseCompletion(body, "demo", limits, &request)) {
    return CheckError(*error);
  }
  RECURVE_CHECK(!request.prompts.empty());
  RECURVE_CHECK(request.prompts.size() <= kMaxPrompts);
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const FieldNames names = CompletionFieldNames(i, request.prompts.size());
    const auto input = Complete(
        request.prompts[i],
        {tokenizer, kMaxModelLen, kCompletionMaxTokens, kVocabSize}, names);
    absl::Status status = input.status();
    if (status.ok()) {
      status =
          ValidateCommand(input->command, 0, limits, input->prompt_name, names);
    }
    if (status.ok()) status = ValidateOptions(input->options, limits, names);
    if (!status.ok()) {
      CheckError(ErrorOf(status));
      continue;
    }
    for (const int32_t id : input->command.append) {
      RECURVE_CHECK(id >= 0 && id < kVocabSize);
    }
    Answer(request, static_cast<int>(i), input->command, tokenizer);
  }
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const recurve::Tokenizer* const tokenizer = [] {
    auto made = recurve::BytesTokenizer::Make(recurve::kVocabSize, 256, 257);
    RECURVE_CHECK(made.ok());
    return made->release();
  }();
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  recurve::Read(body, tokenizer);
  recurve::Read(body, nullptr);
  return 0;
}
