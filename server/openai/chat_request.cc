#include "server/openai/chat_request.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"
#include "server/openai/field_reader.h"
#include "server/openai/request_options.h"

namespace recurve {
namespace {

using nlohmann::json;
using ToolChoice = ChatRequest::ToolChoice;

// JSON schemas of tools are deep; a long conversation has many messages.
constexpr int kMaxChatDepth = 64;
constexpr int kMaxChatValues = 1 << 16;
constexpr int kMaxTools = 128;
constexpr size_t kMaxNameBytes = 64;

constexpr char kRoles[] =
    "system, developer, user, assistant, tool or function";

bool IsRole(const std::string& role) {
  for (const char* known :
       {"system", "developer", "user", "assistant", "tool", "function"}) {
    if (role == known) return true;
  }
  return false;
}

// Names of functions go into prompts of special forms.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         absl::c_all_of(name, [](char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}
constexpr char kNameExpected[] =
    "1 to 64 letters, digits, underscores, dots and dashes";

bool IsText(const std::string& type) {
  return type == "text" || type == "input_text" || type == "output_text" ||
         type == "refusal";
}

// One that asks for a snapshot, in OpenAI's form or in Anthropic's.
bool IsBreak(const json& value) {
  for (const char* key : {"prompt_cache_breakpoint", "cache_control"}) {
    const auto member = value.find(key);
    if (member != value.end() && !member->is_null() && *member != json(false)) {
      return true;
    }
  }
  return false;
}

class ChatReader {
 public:
  ChatReader(FieldReader& reader, ChatRequest& chat)
      : reader_(reader), chat_(chat) {}

  void ReadMessages(const json& value) {
    if (!value.is_array() || value.empty()) {
      return reader_.Unexpected("messages", value,
                                "a list of at least one message");
    }
    for (size_t i = 0; i < value.size() && !reader_.failed(); ++i) {
      ReadMessage(absl::StrCat("messages[", i, "]"), value[i],
                  static_cast<int>(i));
    }
    const size_t breaks = chat_.breaks.size();
    if (breaks > kMaxNamedSnapshots) {
      chat_.breaks.erase(chat_.breaks.begin(),
                         chat_.breaks.end() - kMaxNamedSnapshots);
    }
  }

  void ReadTools(const json& value) {
    if (!value.is_array() || value.size() > kMaxTools) {
      return reader_.Unexpected("tools", value,
                                absl::StrCat("a list of at most ", kMaxTools));
    }
    for (size_t i = 0; i < value.size() && !reader_.failed(); ++i) {
      ReadTool(absl::StrCat("tools[", i, "]"), value[i]);
    }
  }

  void ReadToolChoice(const json& value) {
    has_choice_ = true;
    if (value == json("none")) {
      chat_.tool_choice = ToolChoice::kNone;
    } else if (value == json("auto")) {
      chat_.tool_choice = ToolChoice::kAuto;
    } else if (value == json("required")) {
      chat_.tool_choice = ToolChoice::kRequired;
    } else if (value.is_object() && value.value("type", json()) == "function" &&
               value.contains("function") && value["function"].is_object() &&
               value["function"].contains("name") &&
               value["function"]["name"].is_string()) {
      chat_.tool_choice = ToolChoice::kNamed;
      chat_.tool = value["function"]["name"].get<std::string>();
    } else {
      reader_.Unexpected("tool_choice", value,
                         "'none', 'auto', 'required' or {\"type\": "
                         "\"function\", \"function\": {\"name\": …}}");
    }
  }

  void ReadVariables(const json& value) {
    if (!value.is_object()) {
      return reader_.Unexpected("chat_template_kwargs", value, "an object");
    }
    for (const char* key :
         {"messages", "tools", "add_generation_prompt",
          "continue_final_message", "chat_template", "tokenize"}) {
      if (value.contains(key)) {
        reader_.Fail("chat_template_kwargs",
                     absl::StrCat("has the key ", Quote(key),
                                  ", which is not a variable of the template "
                                  "that a request sets there"));
      }
    }
  }

  // Once all members are read.
  void Check() {
    if (chat_.schemas.empty()) {
      if (has_choice_ && (chat_.tool_choice == ToolChoice::kRequired ||
                          chat_.tool_choice == ToolChoice::kNamed)) {
        reader_.Fail("tool_choice", "asks for a call, and there are no tools");
      }
      chat_.tool_choice = ToolChoice::kNone;
    } else if (chat_.tool_choice == ToolChoice::kNamed &&
               !chat_.schemas.contains(chat_.tool)) {
      reader_.Fail("tool_choice", absl::StrCat("names ", Quote(chat_.tool),
                                               ", which is none of the tools"));
    }
  }

 private:
  void ReadMessage(const std::string& field, const json& message, int index) {
    if (!message.is_object()) {
      return reader_.Unexpected(field, message, "an object");
    }
    const auto role = message.find("role");
    if (role == message.end()) {
      return reader_.Fail(field + ".role", "is missing");
    }
    if (!role->is_string() || !IsRole(role->get<std::string>())) {
      return reader_.Unexpected(field + ".role", *role, kRoles);
    }
    const auto content = message.find("content");
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && !calls->is_null();
    if (content != message.end() && !content->is_null()) {
      ReadContent(field + ".content", *content, index);
    } else if (*role != "assistant") {
      reader_.Fail(field + ".content", "is missing");
    }
    if (has_calls) {
      if (*role != "assistant") {
        return reader_.Fail(field + ".tool_calls",
                            "is set in a message that is not the assistant's");
      }
      ReadCalls(field + ".tool_calls", *calls);
    }
    for (const char* key :
         {"name", "tool_call_id", "reasoning_content", "reasoning"}) {
      const auto member = message.find(key);
      if (member != message.end() && !member->is_null()) {
        reader_.String(absl::StrCat(field, ".", key), *member);
      }
    }
    for (const char* key : {"audio", "function_call"}) {
      const auto member = message.find(key);
      if (member != message.end() && !member->is_null()) {
        reader_.Fail(absl::StrCat(field, ".", key),
                     "is set, and this server has no such messages");
      }
    }
    if (IsBreak(message)) chat_.breaks.emplace_back(index, -1);
  }

  void ReadContent(const std::string& field, const json& content, int index) {
    if (content.is_string()) return;
    if (!content.is_array()) {
      return reader_.Unexpected(field, content, "a string or a list of parts");
    }
    for (size_t i = 0; i < content.size() && !reader_.failed(); ++i) {
      const std::string name = absl::StrCat(field, "[", i, "]");
      const json& part = content[i];
      if (!part.is_object()) {
        return reader_.Unexpected(name, part, "an object");
      }
      const auto type = part.find("type");
      if (type == part.end()) return reader_.Fail(name + ".type", "is missing");
      if (!type->is_string() || !IsText(type->get<std::string>())) {
        return reader_.Unexpected(
            name + ".type", *type,
            "'text': the models of this server read nothing else");
      }
      const auto text = part.find("text");
      if (text == part.end()) return reader_.Fail(name + ".text", "is missing");
      reader_.String(name + ".text", *text);
      if (IsBreak(part)) chat_.breaks.emplace_back(index, static_cast<int>(i));
    }
  }

  void ReadCalls(const std::string& field, const json& calls) {
    if (!calls.is_array()) return reader_.Unexpected(field, calls, "a list");
    for (size_t i = 0; i < calls.size() && !reader_.failed(); ++i) {
      const std::string name = absl::StrCat(field, "[", i, "].function");
      const json& call = calls[i];
      if (!call.is_object() || !call.contains("function") ||
          !call["function"].is_object()) {
        return reader_.Fail(name, "is missing; expected an object");
      }
      const json& function = call["function"];
      if (!function.contains("name")) {
        return reader_.Fail(name + ".name", "is missing");
      }
      reader_.String(name + ".name", function["name"]);
      if (!function.contains("arguments") || function["arguments"].is_null()) {
        continue;
      }
      const std::string arguments =
          reader_.String(name + ".arguments", function["arguments"]);
      if (reader_.failed() || arguments.empty()) continue;
      const auto parsed =
          ParseJson(arguments, name + ".arguments", kMaxChatDepth);
      if (!parsed.ok() || !parsed->is_object()) {
        reader_.Fail(name + ".arguments",
                     absl::StrCat("is ", Quote(arguments),
                                  "; expected the JSON of an object"));
      }
    }
  }

  void ReadTool(const std::string& field, const json& tool) {
    if (!tool.is_object()) return reader_.Unexpected(field, tool, "an object");
    const json type = tool.value("type", json());
    if (type != "function") {
      return reader_.Unexpected(field + ".type", type, "'function'");
    }
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) {
      return reader_.Fail(field + ".function",
                          "is missing; expected an object");
    }
    const json name = function->value("name", json());
    if (!name.is_string() || !IsName(name.get<std::string>())) {
      return reader_.Unexpected(field + ".function.name", name, kNameExpected);
    }
    const auto parameters = function->find("parameters");
    std::map<std::string, std::string> types;
    if (parameters != function->end() && !parameters->is_null()) {
      if (!parameters->is_object()) {
        return reader_.Unexpected(field + ".function.parameters", *parameters,
                                  "a JSON schema, an object");
      }
      const json properties = parameters->value("properties", json());
      if (properties.is_object()) {
        for (const auto& [key, schema] : properties.items()) {
          types[key] = TypeOf(schema);
        }
      }
    }
    if (!chat_.schemas.emplace(name.get<std::string>(), std::move(types))
             .second) {
      reader_.Fail(field + ".function.name",
                   absl::StrCat("is ", Quote(name.get<std::string>()),
                                ", as that of a tool before it"));
    }
  }

  // A type other than string if a value may be one.
  static std::string TypeOf(const json& schema) {
    if (!schema.is_object()) return "";
    const json type = schema.value("type", json());
    if (type.is_string()) return type.get<std::string>();
    return type.is_array() || schema.contains("anyOf") ? "any" : "";
  }

  FieldReader& reader_;
  ChatRequest& chat_;
  bool has_choice_ = false;
};

// Members that other servers have and that have no effect with these values.
bool IsNeutral(const std::string& key, const json& value) {
  if (key == "modalities") return value == json::array({"text"});
  if (key == "echo") return value == json(false);
  if (key == "add_special_tokens") return value == json(false);
  if (key == "verbosity") return value == json("medium");
  return false;
}

}  // namespace

std::optional<ApiError> ParseChat(const std::string& body,
                                  const std::string& model_name,
                                  const RequestLimits& limits,
                                  ChatRequest* chat,
                                  CompletionRequest* request) {
  FieldReader reader(limits.vocab_size);
  json object;
  if (auto error = ParseBody(body, kMaxChatDepth, kMaxChatValues, &object)) {
    return error;
  }
  RequestInput base;
  base.options.sampling.temperature = 1;
  ChatReader messages(reader, *chat);
  bool has_messages = false;
  bool logprobs = false;
  std::optional<int64_t> top_logprobs;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || IsNeutral(key, value)) continue;  // as if absent
    if (key == "messages") {
      messages.ReadMessages(value);
      has_messages = true;
    } else if (key == "tools") {
      messages.ReadTools(value);
    } else if (key == "tool_choice") {
      messages.ReadToolChoice(value);
    } else if (key == "parallel_tool_calls") {
      chat->parallel_tool_calls = reader.Bool(key, value);
    } else if (key == "chat_template_kwargs") {
      messages.ReadVariables(value);
    } else if (key == "add_generation_prompt") {
      chat->generation_prompt = reader.Bool(key, value);
    } else if (key == "continue_final_message") {
      chat->continue_final = reader.Bool(key, value);
    } else if (key == "include_reasoning") {
      chat->include_reasoning = reader.Bool(key, value);
    } else if (key == "reasoning_effort") {
      const std::string effort = reader.String(key, value);
      chat->variables =
          json({{key, effort}})
              .dump(-1, ' ', false, json::error_handler_t::replace);
    } else if (key == "logprobs") {
      logprobs = reader.Bool(key, value);
    } else if (key == "top_logprobs") {
      top_logprobs = reader.Int(key, value, 0, kMaxLogprobs);
    } else if (key == "model") {
      if (auto error = CheckModel(reader, value, model_name)) return error;
    } else if (!ReadOption(key, value, reader, request, &base)) {
      ReadNeutral(key, value, reader);
    }
    if (reader.failed()) return reader.TakeError();
  }
  messages.Check();
  FinishOptions(object, reader, request, &base);
  if (!has_messages) reader.Fail("messages", "is missing");
  if (!base.from_state.empty()) {
    reader.Fail("from_state",
                "is set; messages begin a prompt, so that only "
                "/v1/completions goes on from a state");
  }
  if (top_logprobs.value_or(0) > 0 && !logprobs) {
    reader.Fail("top_logprobs", "is set, and logprobs is not true");
  }
  if (chat->continue_final && chat->generation_prompt) {
    if (object.value("add_generation_prompt", json()) == json(true)) {
      reader.Fail("continue_final_message",
                  "is true, and so is add_generation_prompt; expected one");
    }
    chat->generation_prompt = false;
  }
  if (logprobs) {
    base.options.sampling.num_logprobs =
        static_cast<int32_t>(top_logprobs.value_or(0));
  }
  if (reader.failed()) return reader.TakeError();
  chat->body = body;
  request->prompts = {std::move(base)};
  return std::nullopt;
}

}  // namespace recurve
