// Chat templates in their process, also hostile ones. Needs Python with jinja2.

#include "server/chat/template_renderer.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

constexpr char kChatMl[] =
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

TemplateRenderer::Options Options() {
  TemplateRenderer::Options options;
  options.python = RECURVE_TEST_PYTHON;
  return options;
}

class TemplateRendererTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto started = Start("x");
    if (started.ok()) return;
    ASSERT_EQ(started.status().code(), absl::StatusCode::kUnavailable);
    missing_ = std::string(started.status().message());
  }
  void SetUp() override {
    if (missing_.empty()) return;
    std::cout << "skipped: " << missing_ << std::endl;
    GTEST_SKIP();
  }

  static absl::StatusOr<std::unique_ptr<TemplateRenderer>> Start(
      const std::string& source,
      const TemplateRenderer::Options& options = Options()) {
    ChatTemplate chat;
    chat.file = "chat_template.jinja";
    chat.sources["default"] = source;
    chat.tokens = {{"eos_token", "</s>"}};
    return TemplateRenderer::Start(chat, options);
  }

  static std::string Body(const std::vector<json>& messages) {
    json body;
    body["messages"] = messages;
    return body.dump();
  }
  static json Message(const std::string& role, const json& content) {
    return {{"role", role}, {"content", content}};
  }

  // The text, or the error.
  static std::string Render(
      const std::string& source,
      const TemplateRenderer::Options& options = Options()) {
    auto renderer = Start(source, options);
    if (!renderer.ok()) return std::string(renderer.status().message());
    return Text(**renderer, Body({Message("user", "hi")}));
  }
  static std::string Text(TemplateRenderer& renderer, const std::string& body) {
    TemplateRenderer::Request request;
    request.body = body;
    const auto rendered = renderer.Render(request);
    return rendered.ok() ? rendered->text
                         : std::string(rendered.status().message());
  }

  static std::string missing_;
};
std::string TemplateRendererTest::missing_;

TEST_F(TemplateRendererTest, RendersMessagesAndSaysWhereTheyEnd) {
  auto renderer = Start(kChatMl);
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  const std::string body =
      Body({Message("system", "é☃"), Message("user", "a"),
            Message("assistant", "b"), Message("user", "c")});
  TemplateRenderer::Request request;
  request.body = body;
  request.breaks = {{0, -1}, {2, -1}};
  const auto rendered = (*renderer)->Render(request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  const std::string system = "<|system|>é☃</s>\n";
  const std::string turns = "<|user|>a</s>\n<|assistant|>b</s>\n";
  const std::string last = "<|user|>c</s>\n";
  EXPECT_EQ(rendered->text, system + turns + last + "<|assistant|>");
  EXPECT_EQ(rendered->history,
            static_cast<int64_t>((system + turns + last).size()));
  // Behind the contents.
  const int64_t end = sizeof("</s>\n") - 1;
  EXPECT_EQ(rendered->breaks,
            (std::vector<int64_t>{
                static_cast<int64_t>(system.size()) - end,
                static_cast<int64_t>((system + turns).size()) - end}));
}

TEST_F(TemplateRendererTest, PlacesThatATemplateRefusesAreNotKnown) {
  auto renderer = Start(
      "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
      "{{ messages[0].content }}");
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  const std::string body = Body({Message("user", "a")});
  TemplateRenderer::Request request;
  request.body = body;
  request.breaks = {{0, -1}};
  const auto rendered = (*renderer)->Render(request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "a");
  EXPECT_EQ(rendered->history, -1);
  EXPECT_EQ(rendered->breaks, std::vector<int64_t>{-1});
}

TEST_F(TemplateRendererTest, ContinuesTheLastMessage) {
  auto renderer = Start(kChatMl);
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  const std::string body =
      Body({Message("user", "a"), Message("assistant", "The answer is ")});
  TemplateRenderer::Request request;
  request.body = body;
  request.generation_prompt = false;
  request.continue_final = true;
  const auto rendered = (*renderer)->Render(request);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "<|user|>a</s>\n<|assistant|>The answer is ");
  // Also texts that the template has, and none.
  for (const std::string content : {"", " ", "<", "s", "</s>", "a", "\n"}) {
    const std::string other =
        Body({Message("user", "a"), Message("assistant", content)});
    request.body = other;
    const auto again = (*renderer)->Render(request);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->text, "<|user|>a</s>\n<|assistant|>" + content);
  }
  request.body =
      R"({"messages":[{"role":"assistant","tool_calls":[{"function":)"
      R"({"name":"f"}}]}]})";
  EXPECT_THAT(std::string((*renderer)->Render(request).status().message()),
              HasSubstr("continue_final_message: the last message has tool"));
  // A template that strips contents has no space at the end.
  auto strips = Start("{{ messages[0].content | trim }}</s>");
  ASSERT_TRUE(strips.ok());
  const std::string spaces = Body({Message("assistant", " so ")});
  request.body = spaces;
  const auto stripped = (*strips)->Render(request);
  ASSERT_TRUE(stripped.ok()) << stripped.status();
  EXPECT_EQ(stripped->text, "so");
}

TEST_F(TemplateRendererTest, AByteOrderMarkIsNoMatter) {
  auto renderer = Start("{{ messages[0].content }}");
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  EXPECT_EQ(Text(**renderer, "\xef\xbb\xbf" + Body({Message("user", "é")})),
            "é");
}

TEST_F(TemplateRendererTest, ObjectsKeepTheOrderOfTheRequest) {
  const std::string source =
      "{% for t in tools %}{{ t | tojson }}{% endfor %}"
      "{% for m in messages %}{% for c in m.tool_calls %}"
      "{{ c.function.arguments | tojson }}{% for k, v in "
      "c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
      "{% endfor %}{% endfor %}{{ extra }}{{ messages[0].content }}";
  auto renderer = Start(source);
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  EXPECT_EQ(
      Text(**renderer,
           R"({"tools":[{"z":1,"a":{"y":"<é>","b":2}}],)"
           R"("chat_template_kwargs":{"extra":"E"},"messages":[)"
           R"({"role":"assistant","content":null,"tool_calls":[{"function":)"
           R"({"name":"f","arguments":"{\"z\": 1, \"a\": \"<\"}"}}]}]})"),
      R"({"z": 1, "a": {"y": "<é>", "b": 2}}{"z": 1, "a": "<"}z=1;a=<;E)");
}

TEST_F(TemplateRendererTest, PartsAreJoinedUnlessTheTemplateTakesThem) {
  const json parts = {{{"type", "text"}, {"text", "a"}},
                      {{"type", "input_text"}, {"text", "b"}}};
  const std::string body = Body({Message("user", parts)});
  auto joined = Start("{{ messages[0].content }}");
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(Text(**joined, body), "a\nb");
  auto apart = Start(
      "{% for part in messages[0].content %}({{ part.type }} {{ part.text }})"
      "{% endfor %}");
  ASSERT_TRUE(apart.ok());
  EXPECT_EQ(Text(**apart, body), "(text a)(text b)");
}

TEST_F(TemplateRendererTest, DevelopersAreTheSystemWhereUnknown) {
  const std::string body = Body({Message("developer", "x")});
  auto unaware = Start("{{ messages[0].role }}");
  ASSERT_TRUE(unaware.ok());
  EXPECT_EQ(Text(**unaware, body), "system");
  auto aware = Start("{{ messages[0].role }}{# developer #}");
  ASSERT_TRUE(aware.ok());
  EXPECT_EQ(Text(**aware, body), "developer");
}

TEST_F(TemplateRendererTest, ATemplateRefusesMessages) {
  EXPECT_EQ(Render("{{ raise_exception('No system!') }}"),
            "messages: the chat template refuses them: No system!");
  EXPECT_THAT(
      Render("{{ messages[0] + 1 }}"),
      HasSubstr("messages: the chat template fails on them: TypeError"));
  EXPECT_THAT(Render("{% if %}"), HasSubstr("chat_template.jinja: line 1"));
}

TEST_F(TemplateRendererTest, AnEndlessTemplateIsEnded) {
  TemplateRenderer::Options options = Options();
  options.timeout = std::chrono::milliseconds(300);
  auto renderer = Start(
      "{% if messages[0].content == 'hang' %}{% for a in range(99999) %}"
      "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}done",
      options);
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Text(**renderer, Body({Message("user", "hang")})),
                HasSubstr("messages: the chat template takes longer than"));
    EXPECT_EQ((*renderer)->restarts(), i + 1);
    // Others are served by a process that took its place.
    EXPECT_EQ(Text(**renderer, Body({Message("user", "hi")})), "done");
  }
}

TEST_F(TemplateRendererTest, HugeOutputIsRefused) {
  TemplateRenderer::Options options = Options();
  options.max_text_bytes = 100'000;
  EXPECT_THAT(
      Render("{% for a in range(90000) %}0123456789{% endfor %}", options),
      HasSubstr("the chat template writes more than 100000 characters"));
}

TEST_F(TemplateRendererTest, MemoryIsLimited) {
  TemplateRenderer::Options options = Options();
  options.memory_bytes = int64_t{300} << 20;
  EXPECT_THAT(Render("{{ ('x' * 999999999) | length }}", options),
              HasSubstr("needs more memory than it may have"));
  EXPECT_THAT(
      Render("{% set ns = namespace(x='0123456789') %}{% for i in range(60) %}"
             "{% set ns.x = ns.x + ns.x %}{% endfor %}",
             options),
      HasSubstr("needs more memory than it may have"));
}

TEST_F(TemplateRendererTest, TricksReachNothing) {
  for (const std::string& trick :
       {std::string("{{ ''.__class__.__mro__ }}"),
        std::string("{{ messages.__class__.__base__.__subclasses__() }}"),
        std::string("{{ raise_exception.__globals__['os'].system('true') }}"),
        std::string("{{ strftime_now.__globals__ }}"),
        std::string("{{ cycler.__init__.__globals__.os }}"),
        std::string("{{ self.__init__.__globals__ }}"),
        std::string("{{ (messages | attr('__class__')) }}"),
        std::string("{{ '{0.__class__}'.format(messages) }}"),
        std::string("{{ messages.append(1) }}"),
        std::string("{% include '/etc/passwd' %}"),
        std::string("{% import 'os' as os %}"),
        std::string("{{ lipsum.__globals__ }}"),
        std::string("{{ request.application }}")}) {
    const std::string answer = Render(trick);
    EXPECT_THAT(answer, AnyOf("", HasSubstr("the chat template fails on them"),
                              HasSubstr("chat_template.jinja: line")))
        << trick;
    EXPECT_EQ(answer.find("root:"), std::string::npos) << trick;
    EXPECT_EQ(answer.find("class '"), std::string::npos) << trick;
  }
}

TEST_F(TemplateRendererTest, DeepRecursionIsAnError) {
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("recurses too deeply"));
}

TEST_F(TemplateRendererTest, ManyAtATimeAreAsAlone) {
  auto renderer = Start(kChatMl);
  ASSERT_TRUE(renderer.ok()) << renderer.status();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = absl::StrCat(thread, " ", i);
        EXPECT_EQ(Text(**renderer, Body({Message("user", text)})),
                  absl::StrCat("<|user|>", text, "</s>\n<|assistant|>"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*renderer)->restarts(), 0);
}

TEST(TemplateRendererStartTest, NeedsPython) {
  TemplateRenderer::Options options;
  options.python = "no-such-python";
  ChatTemplate chat;
  chat.sources["default"] = "x";
  const auto started = TemplateRenderer::Start(chat, options);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(started.status().message()),
              HasSubstr("no-such-python cannot be started"));
}

}  // namespace
}  // namespace recurve
