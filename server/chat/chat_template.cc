#include "server/chat/chat_template.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/mapped_file.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTemplateBytes = int64_t{64} << 20;
constexpr int kMaxConfigDepth = 32;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read"));
  }
  std::string bytes = std::move(text).str();
  if (static_cast<int64_t>(bytes.size()) > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", bytes.size(), " bytes; at most ", kMaxTemplateBytes));
  }
  return bytes;
}

// An object; empty if there is no such file.
absl::StatusOr<json> ReadObject(const std::string& path) {
  RECURVE_ASSIGN_OR_RETURN(const bool exists, FileExists(path));
  if (!exists) return json::object();
  RECURVE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  RECURVE_ASSIGN_OR_RETURN(json object, ParseJson(text, path, kMaxConfigDepth));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is ", DescribeJson(object), "; expected an object"));
  }
  return object;
}

// The member chat_template: a template, or a list of them with names.
absl::Status TakeTemplates(const json& config, const std::string& path,
                           ChatTemplate* chat) {
  const auto member = config.find("chat_template");
  if (member == config.end() || member->is_null()) return absl::OkStatus();
  chat->file = path;
  if (member->is_string()) {
    chat->sources["default"] = member->get<std::string>();
    return absl::OkStatus();
  }
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": chat_template is ", DescribeJson(*member),
        "; expected a string, or a list of {name, template} with a default"));
  };
  if (!member->is_array()) return wrong();
  for (const json& named : *member) {
    if (!named.is_object() || !named.contains("name") ||
        !named.contains("template") || !named["name"].is_string() ||
        !named["template"].is_string()) {
      return wrong();
    }
    chat->sources[named["name"].get<std::string>()] =
        named["template"].get<std::string>();
  }
  return chat->sources.contains("default") ? absl::OkStatus() : wrong();
}

// Every member NAME_token: a string, or an object with it as `content`.
void TakeTokens(const json& config,
                std::map<std::string, std::string>* tokens) {
  for (const auto& [key, value] : config.items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    if (value.is_string()) {
      tokens->emplace(key, value.get<std::string>());
    } else if (value.is_object() && value.contains("content") &&
               value["content"].is_string()) {
      tokens->emplace(key, value["content"].get<std::string>());
    }
  }
}

void Describe(ChatTemplate* chat) {
  for (const auto& [name, source] : chat->sources) {
    chat->thinks |= absl::StrContains(source, "</think>");
    chat->takes_tools |= absl::StrContains(source, "tools");
    if (!absl::StrContains(source, "<tool_call>")) continue;
    chat->tool_form = absl::StrContains(source, "<function=")
                          ? ToolForm::kXml
                          : ToolForm::kHermes;
  }
}

}  // namespace

absl::StatusOr<std::optional<ChatTemplate>> ReadChatTemplate(
    const std::string& folder, const std::string& path) {
  ChatTemplate chat;
  const std::string config_file = folder + "/tokenizer_config.json";
  RECURVE_ASSIGN_OR_RETURN(const json config, ReadObject(config_file));
  const std::string file =
      path.empty() ? folder + "/chat_template.jinja" : path;
  bool exists = true;
  if (path.empty()) {
    RECURVE_ASSIGN_OR_RETURN(exists, FileExists(file));
  }
  if (exists) {
    chat.file = file;
    RECURVE_ASSIGN_OR_RETURN(chat.sources["default"], ReadText(file));
  }
  if (chat.sources.empty()) {
    const std::string json_file = folder + "/chat_template.json";
    RECURVE_ASSIGN_OR_RETURN(const json object, ReadObject(json_file));
    RECURVE_RETURN_IF_ERROR(TakeTemplates(object, json_file, &chat));
  }
  if (chat.sources.empty()) {
    RECURVE_RETURN_IF_ERROR(TakeTemplates(config, config_file, &chat));
  }
  if (chat.sources.empty()) return std::nullopt;
  TakeTokens(config, &chat.tokens);
  RECURVE_ASSIGN_OR_RETURN(const json map,
                           ReadObject(folder + "/special_tokens_map.json"));
  TakeTokens(map, &chat.tokens);
  Describe(&chat);
  return chat;
}

}  // namespace recurve
