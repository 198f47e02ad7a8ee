#include "server/openai/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/chat/output_parser.h"
#include "server/requests/encode_threads.h"

namespace recurve {
namespace {

using nlohmann::json;

constexpr char kEndThink[] = "\n</think>\n\n";

// A finite number, which JSON needs.
double Finite(float logprob) { return logprob > -9999.0F ? logprob : -9999.0; }

json TokenJson(int32_t id, float logprob, bool as_ids,
               const Tokenizer* tokenizer) {
  json bytes = json::array();
  for (const char byte : tokenizer->TokenBytes(id)) {
    bytes.push_back(static_cast<uint8_t>(byte));
  }
  return {{"token", TokenText(id, as_ids ? nullptr : tokenizer)},
          {"logprob", Finite(logprob)},
          {"bytes", std::move(bytes)}};
}

class ChatWriter : public ChoiceWriter {
 public:
  ChatWriter(const CompletionRequest& request, const Tokenizer* tokenizer,
             const ChatRequest& chat, const std::string& forced,
             const bool& begins_reasoning, const ChatTemplate& form)
      : request_(request),
        tokenizer_(tokenizer),
        chat_(chat),
        forced_(forced),
        begins_reasoning_(begins_reasoning),
        form_(form) {}

  void SetPrompt(absl::Span<const int32_t>) override {
    parser_.emplace(OutputParser::Options{
        .splits_reasoning = form_.thinks,
        .begins_reasoning = begins_reasoning_,
        .reads_tools = chat_.has_tools() && form_.tool_form != ToolForm::kNone,
        .one_call = !chat_.parallel_tool_calls,
        .schemas = chat_.schemas});
    first_ = parser_->Append(forced_);
  }

  std::vector<json> TakeEvents(ChoicePiece* piece) override {
    OutputPart part = TakeOutput(*piece);
    std::vector<json> events;
    if (!part.reasoning.empty()) {
      events.push_back(EventOf({{"reasoning_content", part.reasoning}}));
    }
    if (!part.content.empty()) {
      events.push_back(EventOf({{"content", part.content}}));
    }
    if (!part.tool_calls.empty()) {
      events.push_back(EventOf({{"tool_calls", CallsJson(part, true)}}));
    }
    const bool finished = piece->finished.has_value();
    const bool counted =
        request_.continuous_usage && piece->tokens.ids_size() > 0;
    if (events.empty() &&
        (finished || counted || !logprobs_.empty() || !ids_.empty())) {
      // Usage and logprobs of text that is held back do not wait for it.
      events.push_back(EventOf(json::object()));
    }
    if (!events.empty()) {
      events.back()["logprobs"] = TakeLogprobs();
      if (request_.return_token_ids) {
        events.back()["token_ids"] = std::exchange(ids_, json::array());
      }
      if (finished) SetEnd(*piece, &events.back());
    }
    piece->tokens.Clear();
    piece->finished.reset();
    return events;
  }

  json Whole(const ChoicePiece& piece) override {
    const OutputPart part = TakeOutput(piece);
    json message = {{"role", "assistant"},
                    {"content", part.content.empty() && parser_->found_calls()
                                    ? json()
                                    : json(part.content)},
                    {"refusal", nullptr}};
    if (!part.reasoning.empty()) {
      message["reasoning_content"] = part.reasoning;
    }
    if (!part.tool_calls.empty()) {
      message["tool_calls"] = CallsJson(part, false);
    }
    json choice = {{"index", piece.index},
                   {"message", std::move(message)},
                   {"logprobs", TakeLogprobs()},
                   {"finish_reason", nullptr},
                   {"stop_reason", nullptr}};
    if (request_.return_token_ids) choice["token_ids"] = std::move(ids_);
    if (piece.finished) SetEnd(piece, &choice);
    return choice;
  }

 private:
  // Also sets logprobs_ and ids_.
  OutputPart TakeOutput(const ChoicePiece& piece) {
    index_ = piece.index;
    OutputPart part = std::exchange(first_, {});
    Join(parser_->Append(piece.tokens.text()), &part);
    if (piece.finished) Join(parser_->Finish(), &part);
    if (!chat_.include_reasoning) part.reasoning.clear();
    for (int i = 0; i < piece.tokens.ids_size(); ++i) {
      const auto id = static_cast<int32_t>(piece.tokens.ids(i));
      if (request_.return_token_ids) ids_.push_back(id);
      if (i >= piece.tokens.logprobs_size()) continue;
      const v1::TokenLogprob& logprob = piece.tokens.logprobs(i);
      json token =
          TokenJson(id, logprob.logprob(), request_.tokens_as_ids, tokenizer_);
      json& top = token["top_logprobs"] = json::array();
      for (const v1::TopLogprob& other : logprob.top()) {
        top.push_back(TokenJson(static_cast<int32_t>(other.id()),
                                other.logprob(), request_.tokens_as_ids,
                                tokenizer_));
      }
      logprobs_.push_back(std::move(token));
    }
    return part;
  }

  static void Join(OutputPart from, OutputPart* to) {
    to->reasoning += from.reasoning;
    to->content += from.content;
    for (ToolCall& call : from.tool_calls) {
      to->tool_calls.push_back(std::move(call));
    }
  }

  json TakeLogprobs() {
    if (request_.prompts[0].options.sampling.num_logprobs < 0) return nullptr;
    return {{"content", std::exchange(logprobs_, json::array())}};
  }

  // The first event also says whose message it is.
  json EventOf(json delta) {
    if (!std::exchange(has_role_, true)) delta["role"] = "assistant";
    return {{"index", index_},
            {"delta", std::move(delta)},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  json CallsJson(const OutputPart& part, bool event) {
    json calls = json::array();
    for (const ToolCall& call : part.tool_calls) {
      json entry = {
          {"id", absl::StrFormat("call_%016x", RandomSeed())},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
      if (event) entry["index"] = calls_;
      ++calls_;
      calls.push_back(std::move(entry));
    }
    return calls;
  }

  void SetEnd(const ChoicePiece& piece, json* choice) const {
    const v1::FinishReason reason = piece.finished->reason();
    (*choice)["finish_reason"] = reason == v1::FINISH_REASON_LENGTH ? "length"
                                 : parser_->found_calls() ? "tool_calls"
                                                          : "stop";
    (*choice)["stop_reason"] = nullptr;
    if (reason == v1::FINISH_REASON_STOP_TOKEN) {
      (*choice)["stop_reason"] = piece.last_token;
    } else if (reason == v1::FINISH_REASON_STOP_STRING) {
      (*choice)["stop_reason"] = piece.finished->stop_string();
    }
    if (piece.seed) (*choice)["seed"] = *piece.seed;
    AddKept(piece, choice);
  }

  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  const ChatRequest& chat_;
  const std::string& forced_;
  const bool& begins_reasoning_;
  const ChatTemplate& form_;
  std::optional<OutputParser> parser_;
  OutputPart first_;  // what forced_ comes to
  int index_ = 0;
  bool has_role_ = false;
  int calls_ = 0;
  json logprobs_ = json::array();
  json ids_ = json::array();
};

// Whether the prompt to generate ends within <think>.
bool OpensReasoning(const TemplateRenderer::Rendered& rendered) {
  const absl::string_view text = rendered.text;
  constexpr absl::string_view kThink = "<think>";
  if (rendered.history < 0 ||
      rendered.history > static_cast<int64_t>(text.size())) {
    return absl::EndsWith(absl::StripTrailingAsciiWhitespace(text), kThink);
  }
  const absl::string_view prompt =
      text.substr(static_cast<size_t>(rendered.history));
  const size_t open = prompt.rfind(kThink);
  return open != absl::string_view::npos &&
         prompt.find("</think>", open) == absl::string_view::npos;
}

ApiError Invalid(const std::string& field, const std::string& problem) {
  ApiError error;
  error.param = field;
  error.message = absl::StrCat(field, " ", problem);
  return error;
}

// How many first tokens of `ids` are those of the text before `cut`, if it is
// between two of them.
std::optional<int64_t> TokensBefore(const std::string& text, int64_t cut,
                                    absl::Span<const int32_t> ids,
                                    const Tokenizer& tokenizer) {
  if (cut <= 0 || cut > static_cast<int64_t>(text.size())) return std::nullopt;
  // The shorter side is encoded once more.
  const absl::string_view view = text;
  const bool behind = cut > static_cast<int64_t>(text.size()) / 2;
  const absl::string_view side = behind
                                     ? view.substr(static_cast<size_t>(cut))
                                     : view.substr(0, static_cast<size_t>(cut));
  const auto part = tokenizer.Encode(side, /*add_bos=*/false);
  if (!part.ok() || part->size() > ids.size()) return std::nullopt;
  const absl::Span<const int32_t> same =
      behind ? ids.last(part->size()) : ids.first(part->size());
  if (!std::equal(same.begin(), same.end(), part->begin())) return std::nullopt;
  return static_cast<int64_t>(behind ? ids.size() - part->size()
                                     : part->size());
}

}  // namespace

std::optional<ApiError> ChatFormat::Parse(const std::string& body,
                                          const std::string& model_name,
                                          const RequestLimits& limits,
                                          CompletionRequest* request) {
  if (auto error = ParseChat(body, model_name, limits, &chat_, request)) {
    return error;
  }
  const ChatTemplate& form = options_.renderer->chat();
  if (!chat_.schemas.empty() && !form.takes_tools) {
    return Invalid("tools",
                   "is set, and the chat template of this model takes none");
  }
  if ((chat_.tool_choice == ChatRequest::ToolChoice::kRequired ||
       chat_.tool_choice == ChatRequest::ToolChoice::kNamed) &&
      form.tool_form == ToolForm::kNone) {
    return Invalid("tool_choice",
                   "asks for a call, whose form in this model's output is not "
                   "known; expected 'auto' or 'none'");
  }
  return std::nullopt;
}

int64_t ChatFormat::PrepareBytes(const CompletionRequest&) const {
  // More than a short text has: the answer of another process is not waited for
  // on a thread of the transport.
  return std::max<int64_t>(static_cast<int64_t>(chat_.body.size()),
                           EncodeThreads::kShortBytes + 1);
}

std::string ChatFormat::ForcedCall() const {
  using ToolChoice = ChatRequest::ToolChoice;
  const ChatTemplate& form = options_.renderer->chat();
  const bool named = chat_.tool_choice == ToolChoice::kNamed;
  if (!named && chat_.tool_choice != ToolChoice::kRequired) return "";
  std::string call = form.tool_form == ToolForm::kXml
                         ? "<tool_call>\n<function="
                         : "<tool_call>\n{\"name\": \"";
  if (named) {
    absl::StrAppend(
        &call, chat_.tool,
        form.tool_form == ToolForm::kXml ? ">\n" : "\", \"arguments\": ");
  }
  return begins_reasoning_ ? kEndThink + call : call;
}

std::optional<ApiError> ChatFormat::Prepare(const RequestContext& context,
                                            CompletionRequest* request) {
  TemplateRenderer::Request render;
  render.body = chat_.body;
  render.with_tools = chat_.has_tools();
  render.generation_prompt = chat_.generation_prompt;
  render.continue_final = chat_.continue_final;
  render.variables = chat_.variables;
  render.breaks = chat_.breaks;
  absl::StatusOr<TemplateRenderer::Rendered> rendered =
      options_.renderer->Render(render);
  if (!rendered.ok()) return ErrorOf(rendered.status());
  chat_.body.clear();
  chat_.body.shrink_to_fit();
  std::string& text = rendered->text;
  begins_reasoning_ = OpensReasoning(*rendered);
  forced_ = ForcedCall();
  text += forced_;

  const Tokenizer& tokenizer = *context.tokenizer;
  // The template writes what goes before a text.
  absl::StatusOr<std::vector<int32_t>> ids =
      tokenizer.Encode(text, /*add_bos=*/false, context.max_model_len);
  if (!ids.ok()) {
    ApiError error = ErrorOf(ids.status());
    error.param = "messages";
    error.message = absl::StrCat("messages ", ids.status().message());
    if (absl::IsOutOfRange(ids.status())) {
      error =
          Invalid("messages", absl::StrCat(ids.status().message(),
                                           "; this server's max_model_len is ",
                                           context.max_model_len));
      error.code = "context_length_exceeded";
    }
    return error;
  }
  if (ids->empty()) {
    return Invalid("messages", "come to an empty prompt by the chat template");
  }
  RequestInput& prompt = request->prompts[0];
  std::vector<int64_t>& places = prompt.options.snapshot_at;
  std::vector<int64_t> cuts = std::move(rendered->breaks);
  if (cuts.size() < kMaxNamedSnapshots) cuts.push_back(rendered->history);
  for (const int64_t cut : cuts) {
    if (const auto place = TokensBefore(text, cut, *ids, tokenizer);
        place && *place > 0) {
      places.push_back(*place);
    }
  }
  prompt.prompt = *std::move(ids);
  return std::nullopt;
}

int64_t ChatFormat::DefaultMaxTokens(const RequestContext& context,
                                     const CompletionRequest& request) const {
  int64_t most = options_.default_max_tokens > 0 ? options_.default_max_tokens
                                                 : context.max_model_len;
  if (!request.stream) {
    // An answer in one has a limit of its own (CheckWholeSize).
    const int64_t logprobs =
        request.prompts[0].options.sampling.num_logprobs + 1;
    most = std::min(most, kMaxWholeTokens / request.samples /
                              (1 + kLogprobTokens * logprobs));
  }
  return most;
}

FieldNames ChatFormat::Names(size_t, size_t) const {
  FieldNames names = CompletionFieldNames(0, 1);
  names.append_ids = names.append_text = "messages";
  return names;
}

std::unique_ptr<ChoiceWriter> ChatFormat::NewWriter(
    const CompletionRequest& request, const Tokenizer* tokenizer, int) const {
  return std::make_unique<ChatWriter>(request, tokenizer, chat_, forced_,
                                      begins_reasoning_,
                                      options_.renderer->chat());
}

}  // namespace recurve
