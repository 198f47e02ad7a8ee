#include "server/chat/tool_calls.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::ordered_json;  // arguments keep their order

// Deeper JSON is taken for text: parsing it would exhaust the stack.
constexpr int kMaxCallDepth = 64;

std::optional<ordered_json> ParseOrdered(absl::string_view text) {
  int depth = 0;
  bool too_deep = false;
  const ordered_json::parser_callback_t check =
      [&](int, ordered_json::parse_event_t event, ordered_json&) {
        using Event = ordered_json::parse_event_t;
        if (event == Event::object_start || event == Event::array_start) {
          too_deep |= ++depth > kMaxCallDepth;
        } else if (event == Event::object_end || event == Event::array_end) {
          --depth;
        }
        return !too_deep;
      };
  ordered_json value =
      ordered_json::parse(text.begin(), text.end(), check, false);
  if (too_deep || value.is_discarded()) return std::nullopt;
  return value;
}

std::string JsonText(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::optional<ToolCall> ParseHermes(absl::string_view text) {
  const std::optional<ordered_json> value = ParseOrdered(text);
  if (!value || !value->is_object()) return std::nullopt;
  const auto name = value->find("name");
  if (name == value->end() || !name->is_string()) return std::nullopt;
  auto arguments = value->find("arguments");
  if (arguments == value->end()) arguments = value->find("parameters");
  ToolCall call{name->get<std::string>(), "{}"};
  if (arguments == value->end() || arguments->is_null()) return call;
  if (arguments->is_string()) {  // some write the object as a text
    const auto inner = ParseOrdered(arguments->get_ref<const std::string&>());
    if (!inner || !inner->is_object()) return std::nullopt;
    call.arguments = JsonText(*inner);
    return call;
  }
  if (!arguments->is_object()) return std::nullopt;
  call.arguments = JsonText(*arguments);
  return call;
}

ordered_json ValueOf(std::string text, const std::string& type) {
  if (type == "string" || type.empty()) return text;
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  // As Python writes them, which models do at times.
  if (stripped == "True" || stripped == "False") return stripped == "True";
  if (stripped == "None") return nullptr;
  if (auto value = ParseOrdered(stripped)) return *std::move(value);
  return text;
}

// Takes what stands before `end`, and `end`.
std::optional<absl::string_view> TakeUntil(absl::string_view end,
                                           absl::string_view* text) {
  const size_t place = text->find(end);
  if (place == absl::string_view::npos) return std::nullopt;
  const absl::string_view taken = text->substr(0, place);
  text->remove_prefix(place + end.size());
  return taken;
}

std::optional<ToolCall> ParseXml(absl::string_view text,
                                 const ToolSchemas& schemas) {
  if (!absl::ConsumePrefix(&text, "<function=")) return std::nullopt;
  const auto name = TakeUntil(">", &text);
  if (!name || name->empty()) return std::nullopt;
  ToolCall call{std::string(*name), ""};
  const auto schema = schemas.find(call.name);
  ordered_json arguments = ordered_json::object();
  for (;;) {
    text = absl::StripLeadingAsciiWhitespace(text);
    if (text.empty() || absl::StartsWith(text, "</function>")) break;
    if (!absl::ConsumePrefix(&text, "<parameter=")) return std::nullopt;
    const auto key = TakeUntil(">", &text);
    if (!key) return std::nullopt;
    auto value = TakeUntil("</parameter>", &text);
    if (!value) return std::nullopt;
    // The newlines around a value are of the form.
    absl::ConsumePrefix(&*value, "\n");
    absl::ConsumeSuffix(&*value, "\n");
    std::string type;
    if (schema != schemas.end()) {
      const auto known = schema->second.find(std::string(*key));
      if (known != schema->second.end()) type = known->second;
    }
    arguments[std::string(*key)] = ValueOf(std::string(*value), type);
  }
  call.arguments = JsonText(arguments);
  return call;
}

}  // namespace

std::optional<ToolCall> ParseToolCall(absl::string_view text,
                                      const ToolSchemas& schemas) {
  text = absl::StripAsciiWhitespace(text);
  if (absl::StartsWith(text, "{")) return ParseHermes(text);
  return ParseXml(text, schemas);
}

}  // namespace recurve
