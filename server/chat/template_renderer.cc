#include "server/chat/template_renderer.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

// From the start of Python until the template is read.
constexpr std::chrono::seconds kStartTimeout{20};
constexpr size_t kMaxReadyBytes = 1 << 20;

std::string ConfigOf(const ChatTemplate& chat,
                     const TemplateRenderer::Options& options) {
  const json config = {
      {"templates", chat.sources},
      {"tokens", chat.tokens},
      {"memory_bytes", options.memory_bytes},
      {"seconds", std::chrono::duration<double>(options.timeout).count()},
      {"max_bytes", options.max_text_bytes}};
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

TemplateRenderer::TemplateRenderer(ChatTemplate chat, Options options)
    : chat_(std::move(chat)),
      options_(std::move(options)),
      config_(ConfigOf(chat_, options_)) {}

TemplateRenderer::~TemplateRenderer() = default;

absl::StatusOr<std::unique_ptr<TemplateRenderer>> TemplateRenderer::Start(
    ChatTemplate chat, Options options) {
  std::unique_ptr<TemplateRenderer> renderer(
      new TemplateRenderer(std::move(chat), std::move(options)));
  Worker first;
  RECURVE_RETURN_IF_ERROR(renderer->StartProcess(&first));
  RECURVE_RETURN_IF_ERROR(renderer->AwaitReady(&first));
  MutexLock lock(&renderer->mu_);
  // The others start when they are first needed; the last is taken first.
  renderer->idle_.resize(static_cast<size_t>(renderer->options_.processes - 1));
  renderer->idle_.push_back(std::move(first));
  return renderer;
}

absl::Status TemplateRenderer::StartProcess(Worker* worker) const {
  worker->ready = false;
  RECURVE_ASSIGN_OR_RETURN(worker->process,
                           TemplateProcess::Start(options_.python, config_));
  return absl::OkStatus();
}

absl::Status TemplateRenderer::AwaitReady(Worker* worker) const {
  const absl::StatusOr<std::string> frame = worker->process->Receive(
      kMaxReadyBytes, steady_clock::now() + kStartTimeout);
  if (!frame.ok()) {
    return absl::UnavailableError(absl::StrCat(
        options_.python, " did not get ready: ", frame.status().message()));
  }
  const json answer = json::parse(*frame, nullptr, false);
  if (answer.is_object() && answer.contains("error")) {
    const std::string error = answer["error"].is_string()
                                  ? answer["error"].get<std::string>()
                                  : answer.dump();
    if (absl::string_view(error).find("jinja2:") != absl::string_view::npos) {
      return absl::UnavailableError(error);
    }
    return absl::InvalidArgumentError(absl::StrCat(chat_.file, ": ", error));
  }
  worker->ready = true;
  return absl::OkStatus();
}

TemplateRenderer::Worker TemplateRenderer::Take() {
  MutexLock lock(&mu_);
  while (idle_.empty()) changed_.Wait(&mu_);
  Worker worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

void TemplateRenderer::Return(Worker worker) {
  MutexLock lock(&mu_);
  idle_.push_back(std::move(worker));
  changed_.NotifyAll();
}

absl::StatusOr<std::string> TemplateRenderer::Exchange(Worker* worker,
                                                       const Request& request) {
  if (worker->process != nullptr && !worker->process->alive()) {
    // Not of this message, which another process can render.
    worker->process.reset();
    MutexLock lock(&mu_);
    ++restarts_;
  }
  if (worker->process == nullptr) {
    RECURVE_RETURN_IF_ERROR(StartProcess(worker));
  }
  if (!worker->ready) RECURVE_RETURN_IF_ERROR(AwaitReady(worker));
  json control = {{"tools", request.with_tools},
                  {"generation_prompt", request.generation_prompt},
                  {"continue", request.continue_final},
                  {"variables", json::parse(request.variables, nullptr, false)},
                  {"breaks", request.breaks}};
  // The process ends by itself a little earlier, which is the same error.
  const auto deadline =
      steady_clock::now() + options_.timeout + std::chrono::milliseconds(500);
  RECURVE_RETURN_IF_ERROR(worker->process->Send(control.dump(), deadline));
  RECURVE_RETURN_IF_ERROR(worker->process->Send(request.body, deadline));
  // JSON has up to six bytes for one of text.
  return worker->process->Receive(
      static_cast<size_t>(6 * options_.max_text_bytes + (1 << 20)), deadline);
}

absl::StatusOr<TemplateRenderer::Rendered> TemplateRenderer::Render(
    const Request& request) {
  Worker worker = Take();
  const auto begin = steady_clock::now();
  absl::StatusOr<std::string> frame = Exchange(&worker, request);
  if (absl::IsAborted(frame.status()) &&
      steady_clock::now() - begin < options_.timeout) {
    // Something else has ended its process, or the message does so each time.
    worker.process.reset();
    {
      MutexLock lock(&mu_);
      ++restarts_;
    }
    frame = Exchange(&worker, request);
  }
  if (!frame.ok()) {
    // It runs already when the next message comes.
    worker.process.reset();
    const absl::Status restarted = StartProcess(&worker);
    {
      MutexLock lock(&mu_);
      ++restarts_;
    }
    Return(std::move(worker));
    if (absl::IsUnavailable(frame.status())) return frame.status();
    if (absl::IsInvalidArgument(frame.status())) return frame.status();
    RECURVE_RETURN_IF_ERROR(restarted);
    if (absl::IsAborted(frame.status()) &&
        steady_clock::now() - begin < options_.timeout) {
      return absl::UnavailableError(
          "the process of the chat template has ended twice");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("messages: the chat template takes longer than ",
                     options_.timeout.count(), " ms with them"));
  }
  Return(std::move(worker));
  const json answer = json::parse(*frame, nullptr, false);
  const auto is_int = [](const json& value) {
    return value.is_number_integer();
  };
  if (answer.is_object() && answer.contains("error") &&
      answer["error"].is_string()) {
    std::string error = answer["error"].get<std::string>();
    if (error.rfind("continue_final_message", 0) != 0) {
      error = absl::StrCat("messages: ", error);
    }
    return absl::InvalidArgumentError(error);
  }
  if (!answer.is_object() || !answer.contains("text") ||
      !answer["text"].is_string() || !answer.contains("history") ||
      !is_int(answer["history"]) || !answer.contains("breaks") ||
      !answer["breaks"].is_array()) {
    return absl::InternalError(
        "the process of the chat template sends "
        "something else than an answer");
  }
  Rendered rendered;
  rendered.text = answer["text"].get<std::string>();
  rendered.history = answer["history"].get<int64_t>();
  for (const json& place : answer["breaks"]) {
    if (is_int(place)) rendered.breaks.push_back(place.get<int64_t>());
  }
  return rendered;
}

int64_t TemplateRenderer::restarts() const {
  MutexLock lock(&mu_);
  return restarts_;
}

}  // namespace recurve
