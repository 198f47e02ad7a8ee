#ifndef RECURVE_SERVER_CHAT_TEMPLATE_RENDERER_H_
#define RECURVE_SERVER_CHAT_TEMPLATE_RENDERER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/chat/chat_template.h"
#include "server/chat/template_process.h"

namespace recurve {

// Renders a chat template, in processes of their own.
//
// Thread safety: all methods may be called from any thread. As many calls run
// at a time as there are processes; others wait for one.
class TemplateRenderer {
 public:
  struct Options {
    std::string python = "python3";  // a program that can import jinja2
    int processes = 2;
    // The time of one message, after which its process is killed.
    std::chrono::milliseconds timeout{2'000};
    int64_t memory_bytes = int64_t{1} << 30;  // of a process's address space
    int64_t max_text_bytes = int64_t{32} << 20;
  };
  struct Request {
    // The JSON of the HTTP request, of which `messages`, `tools` and
    // `chat_template_kwargs` are taken. REQUIRES: they have the form that
    // ReadChat (server/openai/chat_request.h) checks.
    absl::string_view body;
    bool with_tools = true;
    bool generation_prompt = true;
    bool continue_final = false;
    // Further variables of the template, as JSON.
    std::string variables = "{}";
    // Places in the text that are asked for: the end of a message, or of one
    // part of its content, if that is not -1.
    std::vector<std::pair<int, int>> breaks;
  };
  struct Rendered {
    std::string text;
    // How many first bytes of the text are those of the messages, without the
    // prompt to generate: the next turn has them, too. -1: not known.
    int64_t history = -1;
    std::vector<int64_t> breaks;  // first bytes, for each of the request
  };

  // Starts a process, and waits until it has read the template. Unavailable: no
  // Python, or no Jinja2. InvalidArgument: what is wrong with the template.
  static absl::StatusOr<std::unique_ptr<TemplateRenderer>> Start(
      ChatTemplate chat, Options options);
  ~TemplateRenderer();
  TemplateRenderer(const TemplateRenderer&) = delete;
  TemplateRenderer& operator=(const TemplateRenderer&) = delete;

  const ChatTemplate& chat() const { return chat_; }

  // Blocks for as long as the template runs. InvalidArgument: it refuses the
  // messages, fails, or takes too long; the message begins with a field's name.
  // Unavailable: its process has ended, also the one that took its place.
  absl::StatusOr<Rendered> Render(const Request& request);

  // Processes that were started in place of one that ended.
  int64_t restarts() const;

 private:
  struct Worker {
    std::unique_ptr<TemplateProcess> process;  // null: to be started
    bool ready = false;                        // it has read the template
  };

  TemplateRenderer(ChatTemplate chat, Options options);
  absl::Status StartProcess(Worker* worker) const;
  absl::Status AwaitReady(Worker* worker) const;
  absl::StatusOr<std::string> Exchange(Worker* worker, const Request& request);
  Worker Take();
  void Return(Worker worker);

  const ChatTemplate chat_;
  const Options options_;
  const std::string config_;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Worker> idle_ ABSL_GUARDED_BY(mu_);
  int64_t restarts_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_CHAT_TEMPLATE_RENDERER_H_
